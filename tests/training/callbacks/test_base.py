"""The protocol of callbacks: which moment comes when and in which order, what is kept of them, how they fail."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import UserError
from skytune.training.callbacks.base import MOMENTS, Callback, Callbacks

OWN = '''
import json
import os
from pathlib import Path


class Witness:
    """Writes down every moment; counts steps in its state."""

    def __init__(self, folder, name):
        self.file = Path(folder, f"{name}-rank-{os.environ.get('RANK', '0')}.jsonl")
        self.steps = 0
        self.state_was = None

    def note(self, moment, run):
        manifest = bool(run.saved_url) and Path(run.saved_url, "manifest.json").is_file()
        known = {
            "moment": moment, "step": run.step, "saved": run.saved_step, "whole": manifest, "name": self.file.name,
            "model": run.job.model.is_dir(),
        }
        for path in (self.file, self.file.with_name("all.jsonl")):
            with path.open("a") as file:
                file.write(json.dumps(known) + "\\n")

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda run: self.note(name, run)

    def on_step_end(self, run):
        self.steps += 1
        self.note("on_step_end", run)

    def state(self):
        return {"steps": self.steps}

    def load_state(self, values):
        self.state_was = values
        self.steps = values["steps"]

    def on_run_end(self, run):
        run.report["counted"] = [self.steps, self.state_was]
        self.note("on_run_end", run)


class Fails:
    """Raises at one moment, or when its state is asked for."""

    def __init__(self, at):
        self.at = at
        self.state = {"a data attribute": "is no protocol"} if at != "state" else self.broken
        self.load_state = self.state if at == "state" else None

    def on_run_start(self, run):
        pass

    def broken(self, *_):
        return {"no": object()}

    def __getattr__(self, name):
        if not name.startswith("on_") or name != self.at:
            raise AttributeError(name)

        def fail(run):
            raise KeyError("gone")

        return fail


class StopsOn:
    """Wants to end after a step, on one rank only."""

    def __init__(self, rank, step):
        self.rank, self.step = rank, step

    def on_step_end(self, run):
        if run.world.rank == self.rank and run.step == self.step:
            run.stop = True
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "callbacks_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    return "callbacks_own"


def noted(folder: Path, name: str) -> list[dict[str, Any]]:
    path = folder / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def steps(done: Any) -> list[int]:
    return [record["step"] for record in done.history if record["kind"] == "step"]


def test_moments_come_in_order_and_checkpoints_are_whole_when_told(
    run_job: Any, here: None, own: str, kept: Any, tmp_path: Path
) -> None:
    witness = {"_target_": f"{own}.Witness", "folder": str(tmp_path)}
    done = run_job(
        epochs=2,
        limit_train_batches=3,
        checkpoint=kept(async_save=False),
        callbacks={"b": {**witness, "name": "b"}, "a": {**witness, "name": "a"}},
    )
    seen = noted(tmp_path, "b-rank-0")
    moments = [(note["moment"], note["step"]) for note in seen if note["moment"] != "on_checkpoint_saved"]
    epoch = [("on_step_end", 1), ("on_step_end", 2), ("on_step_end", 3), ("on_validation_end", 3)]
    assert moments == [
        ("on_run_start", 0),
        ("on_epoch_start", 0),
        *epoch,
        ("on_epoch_start", 3),
        *[(moment, step + 3) for moment, step in epoch],
        ("on_run_end", 6),
        ("on_model_saved", 6),
    ]
    saved = [note for note in seen if note["moment"] == "on_checkpoint_saved"]
    assert [note["saved"] for note in saved] == [2, 3, 4, 6]
    assert all(note["whole"] for note in saved)
    last = max(index for index, note in enumerate(seen) if note["moment"] == "on_checkpoint_saved")
    assert last < [note["moment"] for note in seen].index("on_run_end")  # the last one too
    assert [note["model"] for note in seen if note["moment"] in ("on_run_end", "on_model_saved")] == [False, True]

    both = [(note["moment"], note["step"], note["name"][0]) for note in noted(tmp_path, "all")]
    for (moment, step, first), (same, _, second) in zip(both[::2], both[1::2], strict=True):
        assert moment == same
        assert first + second == ("ab" if moment == "on_run_end" else "ba"), (moment, step)
    assert done.result["counted"] == [6, None]


def test_state_goes_on_with_the_run(
    run_job: Any, here: None, own: str, kept: Any, cut_back: Any, tmp_path: Path
) -> None:
    witness = {"_target_": f"{own}.Witness", "folder": str(tmp_path), "name": "w"}
    settings = {"max_steps": 7, "checkpoint": kept(), "callbacks": {"w": witness}, "log": {"every_steps": 1}}
    whole = run_job(**settings)
    run = cut_back(after=7)
    first = json.loads((run / "step-00000007" / "manifest.json").read_text())["state"]["callbacks"]
    assert set(first) >= {"progress", "callbacks.w"}
    cut_back(after=4)
    again = run_job(**settings)
    assert again.result["resumed_from"] == 4
    assert whole.result["counted"] == [7, None]
    assert again.result["counted"] == [7, {"steps": 4}]
    second = json.loads((run / "step-00000007" / "manifest.json").read_text())["state"]["callbacks"]
    assert second == first  # the smoothed loss of the progress line as well, to the bit
    losses = [record["loss"] for record in whole.history if record["kind"] == "step"]
    smooth = weight = 0.0
    for loss in losses:
        smooth, weight = 0.9 * smooth + 0.1 * loss, 0.9 * weight + 0.1
    progress = first["progress"]
    assert progress["smooth"] / progress["weight"] == pytest.approx(smooth / weight, rel=1e-9)


@pytest.mark.parametrize(
    "at", ["on_epoch_start", "on_validation_end", "on_checkpoint_saved", "on_run_end", "on_model_saved"]
)
def test_what_fails_is_named_with_its_moment(run_job: Any, here: None, own: str, at: str) -> None:
    with pytest.raises(UserError, match=rf"^callbacks\.mine failed in {at}: KeyError: 'gone'$"):
        run_job(max_steps=2, callbacks={"mine": {"_target_": f"{own}.Fails", "at": at}})


def test_a_state_that_cannot_be_saved_is_told_before_training(run_job: Any, here: None, own: str) -> None:
    with pytest.raises(UserError, match=r"^callbacks\.mine failed in state: TypeError: .*object is not JSON"):
        run_job(max_steps=2, callbacks={"mine": {"_target_": f"{own}.Fails", "at": "state"}})


def test_one_process_that_stops_ends_all_and_rank_0_tells_of_checkpoints(
    run_job: Any, forked: None, own: str, kept: Any, tmp_path: Path
) -> None:
    callbacks = {
        "stop": {"_target_": f"{own}.StopsOn", "rank": 1, "step": 3},
        "w": {"_target_": f"{own}.Witness", "folder": str(tmp_path), "name": "w"},
    }
    done = run_job(
        launch={"num_processes": 2, "threads": 1},
        checkpoint=kept(async_save=False),
        callbacks=callbacks,
        log={"every_steps": 1},
        epochs=3,
    )
    assert (done.result["steps"], done.result["stopped_early"], done.result["status"]) == (3, True, "completed")
    assert steps(done) == [1, 2, 3]
    validated = [record["step"] for record in done.history if record["kind"] == "validation"]
    assert validated == [3]  # where a run ends it is validated, wherever that is
    for rank, told in ((0, [2, 3]), (1, [])):
        seen = noted(tmp_path, f"w-rank-{rank}")
        assert [note["saved"] for note in seen if note["moment"] == "on_checkpoint_saved"] == told
        assert [note["moment"] for note in seen][-2:] == ["on_run_end", "on_model_saved"]


def test_the_base_class_has_every_moment() -> None:
    assert {name for name in vars(Callback) if name.startswith("on_")} == set(MOMENTS)


def test_an_error_while_ending_with_an_error_is_logged_and_all_others_are_called(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    class Fine:
        def __init__(self, name: str, error: type[Exception] | None = None) -> None:
            self.name, self.error = name, error

        def on_exception(self, run: Any) -> None:
            called.append(self.name)
            if self.error:
                raise self.error("no")

    monkeypatch.setattr(logging.getLogger("skytune"), "propagate", True)
    all_of_them: Callable[..., None] = Callbacks([("a", Fine("a")), ("b", Fine("b", OSError)), ("c", Fine("c"))])
    all_of_them("on_exception", None)
    assert called == ["c", "b", "a"]
    assert "b failed in on_exception: OSError: no" in caplog.text
