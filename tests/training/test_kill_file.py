"""SIGKILL at random moments, in the middle of a save included; checkpoints in a folder. See `kills`."""

from pathlib import Path
from typing import Any

import pytest
from kills import Tally, check_kills, seed, soak


class Folder:
    """Stores below a folder of this machine."""

    save_seconds = 0.1

    def __init__(self, root: Path) -> None:
        self.root = root

    def url(self, name: str) -> str:
        return f"file://{self.root}/{name}"

    def saving(self, name: str, process: int) -> bool:
        return any((self.root / name).glob(f"*/.step-*-{process}-*"))

    def torn(self, name: str) -> bool:
        return any((self.root / name).glob("*/.step-*"))

    def finished(self, name: str) -> bool:
        return any((self.root / name).glob("*/finished.json"))


@pytest.mark.slow
def test_killed_at_random_moments(lives: Any, place: Any, tmp_path: Path) -> None:
    tally = Tally(seed())
    check_kills(lives, place, Folder(tmp_path), tally, rounds=10)
    assert tally.kills == 10 and tally.mid_save >= 1 and tally.finished >= 1
    assert max(tally.resumed) > 0


@pytest.mark.soak
@pytest.mark.timeout(2 * 3600)
def test_killed_two_hundred_times(lives: Any, place: Any, tmp_path: Path) -> None:
    soak(lives, place, Folder(tmp_path))
