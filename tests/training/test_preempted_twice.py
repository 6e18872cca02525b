"""A run that is told to end twice, the first time through the real launcher: after exactly steps 30 and 60 of 100."""

from pathlib import Path
from typing import Any

import pytest
from job_dirs import assert_permutations, history, result, same, weights

from skytune.config import ComputeConfig, Device, Preempted
from skytune.job import JobDir
from skytune.launch.local import LocalLauncher


@pytest.mark.slow
def test_the_third_start_goes_on_from_the_second_preemption(
    lives: Any, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 14 (accelerate #1601, #1163): once by SIGTERM, once by the flag file; `keep=2` keeps the two newest."""
    # 40 rows in batches of 8: 20 epochs of 5 steps.
    settings = {"rows": 40, "epochs": 20, "checkpoint": {"every_steps": 25, "keep": 2}}
    calm: Path = place.lay("calm", **settings)
    assert lives.live(calm).code == 0
    assert result(calm)["steps"] == 100

    job: Path = place.lay("twice", **settings)
    (folder,) = [place.home / "twice-store" / job.name]

    def kept() -> list[int]:
        return sorted(int(path.name[5:]) for path in folder.glob("step-*"))

    # Told after one step, a run takes the next one and ends.
    monkeypatch.setenv("SKYTUNE_TEST_END", "29 term")
    with pytest.raises(Preempted, match="stopped after step 30, which is saved"):
        LocalLauncher().run(JobDir(job), ComputeConfig(device=Device.cpu))
    assert kept() == [25, 30]
    assert (result(job)["status"], result(job)["steps"]) == ("preempted", 30)
    life = lives.live(job, SKYTUNE_TEST_END="59 file")
    assert life.code == 0 and "resuming from step 30 " in life.output
    assert (result(job)["status"], result(job)["steps"], result(job)["resumed_from"]) == ("preempted", 60, 30)
    assert kept() == [50, 60]
    life = lives.live(job)
    assert life.code == 0 and "resuming from step 60 " in life.output
    found = result(job)
    assert (found["resumed_from"], found["steps"], found["train_rows"]) == (60, 100, 800)
    assert kept() == [75, 100]

    seen = place.seen(job)
    assert seen == place.seen(calm)
    assert_permutations(seen, rows=40, steps_per_epoch=5)
    assert history(job) == history(calm)
    assert same(weights(job), weights(calm))
