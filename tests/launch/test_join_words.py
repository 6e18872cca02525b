"""The words of `join`: what can never work is one line at once, and not a wait."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from skytune.launch import join
from skytune.launch.gathering import TOKEN
from skytune.launch.nodes import PORT


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What a program sets up for its own log must not be left to other tests."""
    log = logging.getLogger("skytune")
    before = log.handlers[:], log.level, log.propagate
    yield
    log.handlers[:], log.level, log.propagate = before


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def reach(*where: Any) -> Any:
        raise AssertionError(f"somebody was called: {where}")

    monkeypatch.setattr(join, "_reach", reach)
    monkeypatch.setenv(TOKEN, "x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a:99999"], "a:99999: write ADDRESS:PORT, with a port between 1 and 65535"),
        (["a:0"], "a:0: write ADDRESS:PORT"),
        (["a:x"], "a:x: write ADDRESS:PORT"),
        (["a:" + "9" * 5000], "write ADDRESS:PORT"),
        (["[::1]:70000"], "[::1]:70000: write ADDRESS:PORT"),
        ([":29511"], ":29511: write ADDRESS:PORT"),
        (["a", "--timeout", "-1"], "--timeout=-1: must be a number of seconds above 0"),
        (["a", "--timeout", "0"], "--timeout=0: must be"),
        (["a", "--timeout", "nan"], "--timeout=nan: must be"),
        (["a", "--node-rank", "0"], "--node-rank=0: must be at least 1"),
    ],
)
def test_what_cannot_work_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert join.main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("a", ("a", PORT)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("fe80::1", ("fe80::1", PORT)),
        ("[fe80::1]:7", ("fe80::1", 7)),
    ],
)
def test_address_and_port(place: str, found: tuple[str, int]) -> None:
    assert join.split(place) == found


def test_no_port_is_the_usual_one() -> None:
    """As the configuration has it where only `launch.master_addr` is given."""
    with pytest.raises(AssertionError, match=rf"\('a', {PORT}, 'x', 9.0\)"):
        join.join("a", None, rank=1, timeout=9.0)
