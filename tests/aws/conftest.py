"""The stand-in for AWS as a fixture: one farm for the session, and nothing left running after any test."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

# The farm is a package of its own (`python -m farm` works too), not a part of the tests' tree.
sys.path.insert(0, str(Path(__file__).parent))

from farm import Farm, Unavailable


def unavailable(reason: str) -> NoReturn:
    """Skip; where CI is set, fail: there a stand-in that cannot start must not look like tests that passed."""
    if os.environ.get("CI"):
        pytest.fail(f"the stand-in for AWS cannot start: {reason}", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def farm() -> Iterator[Farm]:
    """A running farm."""
    try:
        running = Farm.up()
    except Unavailable as reason:
        unavailable(str(reason))
    yield running
    try:
        left = running.undeclared()
        assert not left, f"still running at the end: {left}"
    finally:
        running.down()


@pytest.fixture(autouse=True)
def _only_what_was_declared_runs(request: pytest.FixtureRequest) -> Iterator[None]:
    """After every test only machines of clusters that a fixture declared may run, and all faults are switched off."""
    running: Farm | None = request.getfixturevalue("farm") if "farm" in request.fixturenames else None
    before = len(running.failures()) if running else 0
    yield
    if running is None:
        return
    running.heal()
    left = running.undeclared()
    for each in left:
        running.terminate(each)
    assert not left, f"still running: {[(each.id, each.cluster, each.type, each.zone) for each in left]}"
    assert not running.failures()[before:], f"the stand-in failed: {running.failures()[before:]}"
