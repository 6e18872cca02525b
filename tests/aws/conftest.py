"""The stand-in for AWS as a fixture: one farm for the session, and nothing left running after any test."""

import os
import random
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

# The farm is a package of its own (`python -m farm` works too), not a part of the tests' tree.
sys.path.insert(0, str(Path(__file__).parent))

import soaklog
from farm import Farm, Unavailable
from project import Project


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder before marks are asked for; several processes that run tests leave them to one.

    They come first, and of them what is refused comes last: one test there ends SkyPilot's server.
    """
    last = Path(__file__).with_name("test_refusals.py")
    items.sort(key=lambda item: 1 + (item.path == last) if Path(__file__).parent in item.path.parents else 3)
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.aws)
            item.add_marker(pytest.mark.xdist_group("aws"))


_outcomes: dict[str, tuple[str, float]] = {}
"""Of every test marked soak: how it ended, and its seconds with its fixtures'."""

launches: list[str] = []
"""What `test_soak.py` has to say of each launch."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what the soak's log is to say."""
    report = yield
    if Path(__file__).parent in item.path.parents and item.get_closest_marker("soak") and not report.skipped:
        name = item.nodeid.rpartition("/")[2].partition("@")[0]
        before, seconds = _outcomes.get(name, ("passed", 0.0))
        outcome = report.outcome if before == "passed" else before
        _outcomes[name] = (outcome, seconds + report.duration)
    return report


def pytest_sessionfinish() -> None:
    """Write the soak's log."""
    if _outcomes:
        tests = [f"- {name}: {outcome}, {seconds:.0f} s" for name, (outcome, seconds) in _outcomes.items()]
        soaklog.append([*tests, *[f"  - {line}" for line in launches]])
    _outcomes.clear()


@pytest.fixture
def note_launch() -> Callable[[str], None]:
    """Return a function that keeps a line for the soak's log."""
    return launches.append


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
    Project.end_all()
    left = running.undeclared()
    for each in left:
        running.terminate(each)
    assert not left, f"still running: {[(each.id, each.cluster, each.type, each.zone) for each in left]}"
    assert not running.failures()[before:], f"the stand-in failed: {running.failures()[before:]}"


SLOW = '''
"""A callback that leaves a test time to do harm, and one that does it by itself."""
import os
import time


class Slow:
    def __init__(self, seconds):
        self.seconds = seconds

    def on_step_end(self, run):
        time.sleep(self.seconds)


class Hold:
    """Stands still after step 35, for ever; resumed from before that, after step 45 until a file is there, and goes
    slowly from then on."""

    def on_step_end(self, run):
        again = run.resumed_from == 30
        while run.step == (45 if again else 35) and not os.path.exists("/tmp/go-on"):
            time.sleep(0.05)
        if again and run.step > 45:
            time.sleep(0.8)


class Tell:
    def on_run_start(self, run):
        print(f"token of {len(os.environ['HF_TOKEN'])} letters", flush=True)


class Broken:
    def on_step_end(self, run):
        if run.step == 3:
            raise RuntimeError("a mistake of the user's")
'''


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of labelled sentences."""
    draw = random.Random(5)
    path = tmp_path_factory.mktemp("data") / "reviews.tsv"
    lines = ["text\tlabel"]
    for _ in range(500):
        label = draw.choice(["good", "bad"])
        words = [
            draw.choice(["the", "a", "film", "plot", "cast", "is", "was", "it"]) for _ in range(draw.randrange(3, 20))
        ]
        lines.append(f"{' '.join([*words, label, draw.choice(['nice', 'dull'])])}\t{label}")
    path.write_text("\n".join(dict.fromkeys(lines)) + "\n")
    return path


@pytest.fixture(scope="session")
def small(tiny_model: Path, rows: Path) -> list[str]:
    """What makes a run small: the tiny model, 20 steps."""
    return [
        f"model.name={tiny_model}",
        "data=files",
        f"data.train={rows}",
        "batch.global_size=16",
        "epochs=100",
        "max_steps=20",
        "optimizer.lr=1e-3",
        "compute.device=cpu",
        "launch.threads=1",
        "eval.every_epochs=0",
    ]


@pytest.fixture(scope="session")
def new_project(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """Return a maker of projects with a stack on the farm."""

    def make(**settings: Any) -> Project:
        project = Project(farm, tmp_path_factory.mktemp("project"), **settings)
        (project.place / "slowly.py").write_text(SLOW)
        return project

    return make
