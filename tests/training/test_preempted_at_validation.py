"""A run that is told to end after a step which a validation should have followed: whoever goes on makes it."""

from pathlib import Path
from typing import Any

from job_dirs import records, result, same, weights


def test_no_validation_is_left_out(lives: Any, place: Any) -> None:
    """Stopped exactly at the end of an epoch, and there of that which is the best: the same validations, the same best
    weights as without."""
    settings = {
        "rows": 40,
        "epochs": 3,
        "eval": {"every_epochs": 1},
        "optimizer": {"lr": 1e-7},
        "checkpoint": {"select": "best", "every_steps": 3},
    }
    calm: Path = place.lay("calm", **settings)
    assert lives.live(calm).code == 0
    assert result(calm)["best"]["step"] == 5, "of equal validations the first counts"

    job: Path = place.lay("told", **settings)
    life = lives.live(job, SKYTUNE_TEST_END="4 file")  # told after one step, a run takes the next one and ends
    assert life.code == 0 and (result(job)["status"], result(job)["steps"]) == ("preempted", 5), life.output
    assert "validation after" not in life.output
    first = result(job)["spent"]
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 5 " in life.output and "validation after step 5:" in life.output
    assert records(job) == records(calm)
    assert result(job)["best"] == result(calm)["best"]
    assert same(weights(job), weights(calm))

    # What a run costs is what all its starts together cost.
    assert (first["starts"], result(job)["spent"]["starts"]) == (1, 2)
    assert 0 < first["wall_s"] < result(job)["spent"]["wall_s"] == result(job)["spent"]["process_s"]
