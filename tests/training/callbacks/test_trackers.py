"""What is handed to trackers, and that a tracker's failure is said once and goes no further."""

import logging
from typing import Any

import pytest


class Broken:
    """A tracker that fails at its third record."""

    trouble = ""

    def __init__(self, fails: bool = True) -> None:
        self.fails, self.steps, self.status, self.abandoned = fails, [], "", 0

    def start(self) -> None:
        pass

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def hand(self, values: dict[str, float], step: int, age: float) -> None:
        if self.fails and len(self.steps) == 2:
            raise RuntimeError(f"no more\nof step {step}")
        self.steps.append((step, age))

    def end(self, status: str) -> None:
        self.status = status

    def place(self) -> dict[str, str]:
        return {"folder": "/x", "command": "look at"}

    def abandon(self) -> None:
        self.abandoned += 1


@pytest.mark.parametrize("fails", [True, False], ids=["broken", "whole"])
def test_a_tracker_of_any_kind(fails: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from skytune.training.callbacks.history import History
    from skytune.training.callbacks.trackers import TrackerFeed

    monkeypatch.setattr(logging.getLogger("skytune"), "propagate", True)
    history, tracker = History(), Broken(fails)
    feed = TrackerFeed("any", lambda: tracker, {"a": 1}, history)
    with caplog.at_level(logging.INFO):
        feed.start()
        for step in (1, 2, 3, 4):
            history.records.append({"kind": "step", "step": step, "loss": 0.5, "elapsed_s": float(step)})
            feed.news.set()
        feed.end("failed")
        feed.close(30, "")
    assert not feed.is_alive() and tracker.config == {"a": 1}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    if fails:
        assert warnings == ["tracker any failed (RuntimeError: no more); training does not depend on it"]
        assert tracker.abandoned == 1 and tracker.status == ""
    else:
        assert warnings == [] and [step for step, _ in tracker.steps] == [1, 2, 3, 4]
        assert all(age >= 0 for _, age in tracker.steps) and tracker.status == "failed"


def test_last_values() -> None:
    from skytune.training.outputs import last_values

    records = [
        {"kind": "step", "step": 1, "loss": 0.5, "lr": 0.1, "grad_norm": None},
        {"kind": "validation", "step": 1, "split": "validation", "metrics": {"accuracy": 0.5, "f1": float("nan")}},
        {"kind": "step", "step": 2, "loss": 0.4, "lr": 0.1, "grad_norm": 2.0},
    ]
    assert last_values(records) == {
        "train/loss": 0.4,
        "train/lr": 0.1,
        "train/grad_norm": 2.0,
        "validation/accuracy": 0.5,
    }
    assert last_values([]) == {}
