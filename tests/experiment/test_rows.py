"""What a row says of a finished cell, number by number, out of what its job left."""

from collections.abc import Callable
from typing import Any

import pytest

from skytune.config import RunConfig
from skytune.config.folders import home
from skytune.experiment import run_experiment
from skytune.experiment.table import mfu_of, steady_rate

Design = Callable[..., RunConfig]


def test_every_second_is_somewhere(design: Design, prices: Any, recorded: Any) -> None:
    """The recorded job: 5 s to start, 2 s to load, 0.32 s of training (32 rows at 100 a second), 1 s of validating, 1 s
    of predicting, 0.5 s of saving; the machine was paid for 60 s of provisioning, 100 s of setup, 30 s of the job."""
    phases = {"provision_s": 60.0, "setup_s": 100.0, "job_s": 30.0}
    attempts = [{"phases": phases, "hourly_usd": 3.6, "nodes": 1, "ended": "done"}]
    config = design(factors={"compute": ["g5.xlarge"], "rows": [32]}, max_usd=9.0)
    row = run_experiment(config, lambda machine: recorded(machine, attempts), prices)[0]
    assert row["total_s"] == 190.0 and row["usd_total"] == pytest.approx(0.19)
    spans = {name: row[name] for name in ("provision_s", "setup_s", "train_s", "evaluate_s", "save_s", "idle_s")}
    assert spans == {
        "provision_s": 60.0,
        "setup_s": 107.0,
        "train_s": 0.32,
        "evaluate_s": 2.0,
        "save_s": 0.5,
        "idle_s": 20.18,
    }
    assert sum(spans.values()) == pytest.approx(row["total_s"])
    assert row["usd_per_1000_samples"] == pytest.approx(0.19 / 32 * 1000)
    points = 100 * (row["accuracy"] - row["baseline_accuracy"])
    assert row["usd_per_accuracy_point"] == pytest.approx(0.19 / points, rel=1e-4)


def test_the_steady_rate_leaves_the_first_fifth_out() -> None:
    slow = [{"kind": "step", "step": n, "rows": 10 * n, "elapsed_s": 5.0 * n} for n in (1, 2)]
    fast = [{"kind": "step", "step": n, "rows": 10 * n, "elapsed_s": 10.0 + 0.1 * (n - 2)} for n in range(3, 11)]
    assert steady_rate([*slow, {"kind": "validation"}, *fast]) == pytest.approx(80 / 0.8)
    assert steady_rate(slow) is None


def test_utilization_is_of_all_devices() -> None:
    result = {"train_flops": 1000.0, "train_rows": 10, "peak_flops": 500.0, "mfu": 0.9}
    assert mfu_of({**result, "world_size": 1}, 4.0) == pytest.approx(0.8)
    assert mfu_of({**result, "world_size": 4}, 4.0) == pytest.approx(0.2)
    assert mfu_of({**result, "peak_flops": None}, 4.0) == 0.9, "as the job says where the peak is unknown"


@pytest.mark.parametrize("keep", [True, False])
def test_weights_are_kept_only_on_demand(design: Design, prices: Any, recorded: Any, keep: bool) -> None:
    class Leaves(recorded):  # type: ignore[misc]
        def _leave(self, job: Any) -> None:
            super()._leave(job)
            job.model.mkdir(parents=True)
            (job.model / "model.safetensors").write_bytes(b"weights")

    row = run_experiment(design(factors={"rows": [32]}, keep_models=keep), Leaves, prices)[0]
    assert (home() / row["job"] / "outputs" / "model" / "model.safetensors").is_file() is keep
