"""The resume test that counts: train to the end and keep what every step did; delete the last checkpoint, resume from
the one before, and nothing may differ. Workers are real process groups (see `forked_workers`)."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from job_dirs import assert_permutations, history, result, same, weights

from skytune.config import ScheduleConfig
from skytune.data.order import SampleOrder, micro_batches
from skytune.training.schedule import factor

ROWS, STEPS_PER_EPOCH, STEPS = 90, 12, 36
"""Three epochs; the last batch of each has 2 rows instead of 8."""
MIDDLE = 18
"""In the middle of epoch 1 (they count from 0)."""

KINDS: dict[str, dict[str, Any]] = {
    "dropout": {"optimizer": {"gradient_noise": 0.01}},
    "adamw": {"model": {"dropout": 0.0}},
    "sgd": {
        "model": {"dropout": 0.0},
        "optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": 0.0, "gradient_noise": 1e-4},
    },
}
WITHIN = {"adamw": 1e-5, "sgd": 1e-6}
"""How far weights may be apart where another number of processes has added up in another order (seen: 1e-8 in both).
AdamW divides by the root of a mean of squares: where gradients are near 0 that can make much of a rounding error."""


@pytest.fixture(scope="module")
def whole(lives: Any, place: Any) -> Any:
    """Return a maker of (job directory, what an undisturbed run on so many processes left), one for each pair."""
    made: dict[tuple[int, str], tuple[Path, dict[str, Any]]] = {}

    def make(processes: int, kind: str) -> tuple[Path, dict[str, Any]]:
        if (processes, kind) not in made:
            name = f"whole-{processes}-{kind}"
            job = place.lay(name, epochs=3, checkpoint={"every_steps": MIDDLE}, **KINDS[kind])
            life = lives.live(job, processes)
            assert life.code == 0, life.output
            seen = place.seen(job)
            assert_permutations(seen, ROWS, STEPS_PER_EPOCH)
            made[processes, kind] = job, left(job) | {"seen": seen}
        return made[processes, kind]

    return make


def left(job: Path) -> dict[str, Any]:
    return {"history": history(job), "result": result(job), "weights": weights(job)}


def without_the_last(place: Any, job: Path) -> None:
    """Delete the last checkpoint and the word that the run is finished."""
    run = place.home / f"{job.name.rpartition('-')[0]}-store" / job.name
    steps = sorted(run.glob("step-*"))
    assert steps[0].name == f"step-{MIDDLE:08d}" and steps[-1].name == f"step-{STEPS:08d}"
    shutil.rmtree(steps[-1])
    (run / "finished.json").unlink()


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [(1, 1, "dropout"), (2, 2, "dropout"), *((b, a, kind) for kind in KINDS for b, a in ((1, 2), (2, 1)))],
    ids=lambda value: str(value),
)
def test_nothing_differs(lives: Any, place: Any, whole: Any, before: int, after: int, kind: str) -> None:
    """Case 13 (accelerate #2016, #2823, #4233): stopped in the middle of epoch 1. Rows, schedule and totals are exact
    in any case; losses and weights are bit for bit the same on as many processes, with dropout on, and equal but for
    rounding on another number of them, with dropout off (masks are drawn per process)."""
    job, first = whole(before, kind)
    without_the_last(place, job)
    for path in job.glob("seen-*"):
        path.unlink()
    life = lives.live(job, after)
    assert life.code == 0 and f"resuming from step {MIDDLE} " in life.output, life.output
    again, seen = left(job), place.seen(job)
    assert (again["result"]["resumed_from"], again["result"]["world_size"]) == (MIDDLE, after)

    assert seen == {step: rows for step, rows in first["seen"].items() if step > MIDDLE}
    rest = {step: first["seen"][step] for step in range(1, MIDDLE + 1)} | seen
    assert_permutations(rest, ROWS, STEPS_PER_EPOCH)
    for key in ("steps", "epochs", "train_rows", "train_tokens", "global_batch", "steps_per_epoch"):
        assert again["result"][key] == first["result"][key], key
    assert again["result"]["train_rows"] == 3 * ROWS
    for key in ("step", "epoch", "lr", "rows", "tokens"):
        assert [r[key] for r in again["history"].values()] == [r[key] for r in first["history"].values()], key

    if before == after:
        assert again["history"] == first["history"]  # losses and gradient norms, too
        assert same(again["weights"], first["weights"])
    elif kind != "dropout":
        losses = {step: (record["loss"], first["history"][step]["loss"]) for step, record in again["history"].items()}
        furthest = max(abs(a - b) for a, b in losses.values())
        weights_furthest = max(np.abs(again["weights"][n] - first["weights"][n]).max() for n in again["weights"])
        assert len(losses) == STEPS and furthest < 1e-6
        assert weights_furthest < WITHIN[kind]


def test_three_processes_add_up_in_the_same_order(lives: Any, place: Any) -> None:
    """DistributedDataParallel lays its buckets out anew after its first step, and with more than two processes the
    order of a sum depends on where in a bucket a gradient lies."""
    job = place.lay("three", epochs=3, checkpoint={"every_steps": MIDDLE})
    life = lives.live(job, 3)
    assert life.code == 0, life.output
    first = left(job)
    without_the_last(place, job)
    life = lives.live(job, 3)
    assert life.code == 0 and f"resuming from step {MIDDLE} " in life.output, life.output
    again = left(job)
    assert again["result"]["world_size"] == 3
    assert again["history"] == first["history"]
    assert same(again["weights"], first["weights"])


def test_nine_rows_give_nine_updates(lives: Any, place: Any) -> None:
    """Case 17 (transformers #24186, #37777): 9 rows, global batch 4 in micro-batches of 2, 3 epochs: 9 updates. Killed
    after update 4, in the middle of epoch 1: still 9, and 27 rows seen."""
    settings = {
        "rows": 9,
        "epochs": 3,
        "batch": {"global_size": 4, "micro_size": 2},
        "checkpoint": {"every_steps": 1, "async_save": False},
    }
    calm = place.lay("nine-calm", **settings)
    assert lives.live(calm).code == 0
    assert result(calm)["accumulation"] == 2
    job = place.lay("nine", **settings)
    assert lives.live(job, SKYTUNE_TEST_END="5 kill").code == -9  # before the save of its fifth update
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 4 " in life.output, life.output
    found, seen = result(job), place.seen(job)
    assert (found["steps"], found["train_rows"], found["resumed_from"]) == (9, 27, 4)
    assert_permutations(seen, rows=9, steps_per_epoch=3)
    assert [len(rows) for rows in seen.values()] == [4, 4, 1] * 3
    assert history(job) == history(calm) and same(weights(job), weights(calm))


def test_the_schedule_does_not_know_how_many_processes_there_are(lives: Any, place: Any) -> None:
    """Case 18 (accelerate #2926): linear over 100 steps on 1, 2 and 4 processes: half the base rate at step 50, and
    the same after a resume there on yet another number of processes."""
    wanted = [1e-3 * factor(ScheduleConfig(), 100)(step) for step in range(100)]
    assert wanted[50] == 0.5e-3
    rates = {}
    for first, then in ((1, 4), (2, 1), (4, 2)):
        # 16 rows in batches of 4: 25 epochs. Killed at the end of step 52, so that step 51 is on record.
        job = place.lay(
            f"rate-{first}",
            rows=16,
            epochs=25,
            batch={"global_size": 4},
            eval={"every_epochs": 0},
            checkpoint={"every_steps": 50, "async_save": False},
        )
        assert lives.live(job, first, SKYTUNE_TEST_END="52 kill").code == -9
        stopped = history(job)
        assert stopped[50]["lr"] > 0.5e-3
        life = lives.live(job, then)
        assert life.code == 0 and "resuming from step 50 " in life.output, life.output
        resumed = history(job)
        # The rate of the step that follows on 50 steps done.
        assert stopped[51]["lr"] == resumed[51]["lr"] == 0.5e-3
        rates[first, then] = [record["lr"] for record in resumed.values()]
        assert result(job)["steps"] == 100 and result(job)["world_size"] == then
    assert all(found == wanted for found in rates.values())
    # Nor does the order of rows.
    order = SampleOrder(np.full(16, 5), seed=42, global_size=4)
    for world in (1, 2, 4):
        parts = [micro_batches(order.rows(50), rank=r, world_size=world, micro_size=None) for r in range(world)]
        assert sorted(row for part in parts for m in part for row in m.rows) == sorted(order.rows(50))
