"""A run that was cut short goes on exactly: the same rows, losses, schedule and weights as one that was not."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

EXACT = {"log": {"every_steps": 1}, "eval": {"every_epochs": 1}, "epochs": 3, "optimizer": {"lr": 1e-3}}


def losses(done: Any) -> dict[int, float]:
    return {r["step"]: r["loss"] for r in done.history if r["kind"] == "step"}


def weights(done: Any) -> dict[str, np.ndarray]:
    return load_file(done.job.model / "model.safetensors")


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Checkpoints that outlive the run, every four steps, all of them kept."""

    def settings(store: str = "store", **more: Any) -> dict[str, Any]:
        return {"store": str(tmp_path / store), "every_steps": 4, "keep": 99, "select": "last", **more}

    return settings


def cut_back(store: Path, after: int) -> Path:
    """Take away everything a store has of steps after `after`, as if the machine had died there."""
    (run,) = [path for path in store.iterdir() if path.is_dir()]
    for folder in run.glob("step-*"):
        if int(folder.name[5:]) > after:
            shutil.rmtree(folder)
    (run / "finished.json").unlink(missing_ok=True)
    (run / "completed.json").unlink(missing_ok=True)
    return run


def test_resuming_gives_the_same_losses_and_weights_bit_for_bit(run_job: Any, kept: Any, tmp_path: Path) -> None:
    """Dropout on: what is drawn is a function of (seed, step, rank)."""
    whole = run_job(rows=90, checkpoint=kept(), **EXACT)
    assert whole.result["steps"] == 36 and whole.result["resumed_from"] is None
    cut_back(tmp_path / "store", after=20)
    again = run_job(rows=90, checkpoint=kept(), **EXACT)
    assert again.result["resumed_from"] == 20
    assert losses(again) == losses(whole)
    assert again.result["train_rows"] == whole.result["train_rows"] == 270
    assert again.result["train_tokens"] == whole.result["train_tokens"]
    first, second = weights(whole), weights(again)
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_on_another_number_of_processes(run_job: Any, kept: Any, tmp_path: Path) -> None:
    exact = {**EXACT, "model": {"dropout": 0.0}, "epochs": 2}
    whole = run_job(rows=90, checkpoint=kept(), **exact)
    cut_back(tmp_path / "store", after=8)
    two = run_job(rows=90, checkpoint=kept(), launch={"num_processes": 2, "threads": 1}, **exact)
    assert (two.result["resumed_from"], two.result["world_size"]) == (8, 2)
    cut_back(tmp_path / "store", after=16)
    one = run_job(rows=90, checkpoint=kept(), **exact)
    assert (one.result["resumed_from"], one.result["world_size"]) == (16, 1)
    for done in (two, one):
        assert losses(done).keys() == losses(whole).keys()
        assert max(abs(losses(done)[step] - loss) for step, loss in losses(whole).items()) < 1e-5
        assert done.result["train_rows"] == 180


def test_a_broken_newest_checkpoint_is_named_and_the_one_before_used(
    run_job: Any, kept: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = run_job(rows=90, checkpoint=kept(), **EXACT)
    run = cut_back(tmp_path / "store", after=16)
    victim = run / "step-00000016" / "model.safetensors"
    victim.write_bytes(victim.read_bytes()[:-100])
    again = run_job(rows=90, checkpoint=kept(), **EXACT)
    said = capfd.readouterr().out
    assert again.result["resumed_from"] == 12
    assert "step-00000016" in said and "model.safetensors" in said
    assert losses(again) == losses(whole)


def test_a_finished_run_is_not_handed_out_again(run_job: Any, kept: Any) -> None:
    settings = {**EXACT, "max_steps": 6}
    run_job(rows=64, checkpoint=kept(), **settings)
    again = run_job(rows=64, checkpoint=kept(), **settings)
    assert again.result["resumed_from"] is None
    assert len(losses(again)) == 6


def test_resume_modes(run_job: Any, kept: Any, tmp_path: Path) -> None:
    from skytune.config import UserError

    settings = {**EXACT, "epochs": 1, "max_steps": 10}
    with pytest.raises(UserError, match="resume=must"):
        run_job(rows=90, checkpoint=kept(), resume="must", **settings)
    run_job(rows=90, checkpoint=kept(), **settings)
    cut_back(tmp_path / "store", after=8)
    assert run_job(rows=90, checkpoint=kept(), resume="4", **settings).result["resumed_from"] == 4
    cut_back(tmp_path / "store", after=8)
    assert run_job(rows=90, checkpoint=kept(), resume="never", **settings).result["resumed_from"] is None


def test_from_a_checkpoint_elsewhere(run_job: Any, kept: Any, tmp_path: Path) -> None:
    from skytune.config import UserError

    settings = {**EXACT, "max_steps": 10}
    whole = run_job(rows=90, checkpoint=kept("a"), **settings)
    (run,) = [path for path in (tmp_path / "a").iterdir() if path.is_dir()]
    again = run_job(rows=90, checkpoint=kept("b"), resume=str(run / "step-00000004"), **settings)
    assert again.result["resumed_from"] == 4
    assert losses(again) == losses(whole)
    with pytest.raises(UserError, match=r"is of another run, .*batch.global_size: 8 there, 16 here"):
        run_job(rows=90, checkpoint=kept("c"), resume=str(run), batch={"global_size": 16}, **settings)


def test_the_best_weights_come_from_their_checkpoint(run_job: Any, kept: Any, tmp_path: Path) -> None:
    """Validation gets worse at the end; keep=1 must not have thrown the best away."""
    settings = {"log": {"every_steps": 1}, "eval": {"every_steps": 2}, "max_steps": 12, "optimizer": {"lr": 0.3}}
    chosen = kept(select="best", metric="loss", keep=1, every_steps=0)
    done = run_job(rows=90, checkpoint=chosen, schedule={"name": "constant"}, **settings)
    best = done.result["best"]["step"]
    assert best < 12
    (run,) = [path for path in (tmp_path / "store").iterdir() if path.is_dir()]
    stored = load_file(run / f"step-{best:08d}" / "model.safetensors")
    assert all(np.array_equal(stored[name], value) for name, value in weights(done).items())
    assert len(list(run.glob("step-*"))) == 2


def test_told_to_end_it_saves_and_goes_on(run_job: Any, kept: Any, tmp_path: Path) -> None:
    """Preempted twice (accelerate #1601, #1163): the third start goes on from the second preemption."""
    from skytune.config import Preempted

    settings = {**EXACT, "epochs": 5}
    whole = run_job(rows=90, name="whole", checkpoint=kept("whole", every_steps=0, keep=2), **settings)
    module = tmp_path / "own" / "stopper.py"
    module.parent.mkdir()
    module.write_text(
        "import os, pathlib\n"
        "class Stop:\n"
        "    def __init__(self, at): self.at = at\n"
        "    def on_step_end(self, run):\n"
        "        if run.step == self.at: pathlib.Path(run.job.root, 'preempt').touch()\n"
    )
    import sys

    sys.path.append(str(module.parent))
    try:
        stops = []
        for at in (19, 39):
            with pytest.raises(Preempted):
                run_job(rows=90, name="cut", checkpoint=kept(every_steps=0, keep=2),
                        callbacks={"stop": {"_target_": "stopper.Stop", "at": at}}, **settings)  # fmt: skip
            stops.append(at)
    finally:
        sys.path.remove(str(module.parent))
    assert stops == [19, 39]
    assert whole.result["steps"] == 60
