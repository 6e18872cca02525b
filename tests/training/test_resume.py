"""How a run is resumed: modes, places, damage, the best weights. That nothing differs then is tested in
`test_resume_exact.py`, the same through the real launcher in `test_preempted_twice.py`."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.usefixtures("forked")

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


def test_a_broken_newest_checkpoint_is_named_and_the_one_before_used(
    run_job: Any, kept: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = run_job(rows=90, checkpoint=kept(), **EXACT)
    run = cut_back(tmp_path / "store", after=16)
    victim = run / "step-00000016" / "model.safetensors"
    victim.write_bytes(victim.read_bytes()[:-100])
    again = run_job(rows=90, checkpoint=kept(), **EXACT)
    output = capfd.readouterr().out
    assert again.result["resumed_from"] == 12
    assert "step-00000016" in output and "model.safetensors" in output
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
    with pytest.raises(UserError, match="resume=required"):
        run_job(rows=90, checkpoint=kept(), resume="required", **settings)
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
    """Nothing is learned at such a rate, so an early validation is as good as any; keep=1 must not have thrown its
    checkpoint away."""
    settings = {"log": {"every_steps": 1}, "eval": {"every_steps": 2}, "max_steps": 12, "optimizer": {"lr": 1.0}}
    chosen = kept(select="best", metric="accuracy", keep=1, every_steps=0)
    done = run_job(rows=90, checkpoint=chosen, schedule={"name": "constant"}, **settings)
    best = done.result["best"]["step"]
    assert best < 12
    (run,) = [path for path in (tmp_path / "store").iterdir() if path.is_dir()]
    stored = load_file(run / f"step-{best:08d}" / "model.safetensors")
    assert all(np.array_equal(stored[name], value) for name, value in weights(done).items())
    assert len(list(run.glob("step-*"))) == 2


@pytest.mark.parametrize("processes", [1, 2])
def test_saves_by_the_clock(run_job: Any, kept: Any, tmp_path: Path, processes: int) -> None:
    """So many minutes after the last save, whatever the step; rank 0's clock counts, and all processes save together.
    Where it is not time yet, only the end is saved."""
    settings = {"max_steps": 5, "eval": {"every_epochs": 0}, "launch": {"num_processes": processes, "threads": 1}}
    often = kept(every_steps=0, every_minutes=1e-9, async_save=False)
    done = run_job(rows=90, name="often", checkpoint=often, **settings)
    seldom = run_job(rows=90, name="seldom", checkpoint=kept(every_steps=0, every_minutes=60.0), **settings)

    def steps(job: Any) -> list[int]:
        return sorted(int(path.name[5:]) for path in (tmp_path / "store" / job.result["run_key"]).glob("step-*"))

    assert done.result["world_size"] == processes
    assert steps(done) == [1, 2, 3, 4, 5]
    assert steps(seldom) == [5]
