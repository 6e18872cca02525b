"""A search whose trials run on machines of the stand-in, two at once, one of them taken away."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from farm import Farm, Instance
from project import Project

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]


def test_a_search_on_two_machines_of_which_one_is_lost_finds_what_one_at_home_finds(
    farm: Farm, new_project: Callable[..., Project], small: list[str]
) -> None:
    with farm.inside():
        s3 = farm.client("s3")
        s3.create_bucket(Bucket="skytune-search")
    project = new_project(infra="aws/us-east-1", instance_type="m5.large", use_spot=True)
    words = [
        *small,
        "max_steps=40",
        "checkpoint.every_steps=10",
        "pipeline=search",
        "search.space={optimizer.lr: 'loguniform(1e-4,1e-2)', model.dropout: 'uniform(0,0.2)'}",
        "search.halving=3",
        "search.confirm=0",
        "search.metric=loss",
    ]
    three = "search.trials=3"
    away = ["search.name=away", "search.machines=2", "checkpoint.store=s3://skytune-search/runs", "log.every_seconds=0"]
    before = farm.instances(gone=True)
    poor = project.run(*words, *away, three, "search.max_usd=0.0001")
    assert poor.code != 0 and "search.max_usd=0.0001: no trial can begin" in poor.out, poor.out
    assert not farm.since(before), "nothing starts that cannot be paid for"

    # The winner's second part stands still after step 35 until its machine is gone.
    hold = ["+callbacks.hold._target_=slowly.Hold", "plugins=[slowly]"]
    process = project.start(*words, *away, *hold, three, "search.max_usd=1")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or []))
    reader.start()

    def steps(name: str, search: str = "away") -> int:
        assert process.poll() is None, "".join(lines)
        with farm.inside():
            found = s3.list_objects_v2(Bucket="skytune-search").get("Contents", [])
        return sum(f"/search-{search}-" in each["Key"] and each["Key"].endswith(name) for each in found)

    farm.wait(lambda: steps("step-00000030/manifest.json"), seconds=1800, for_="step 30")
    running: list[Instance] = []

    def alone() -> bool:
        running[:] = [each for each in farm.instances() if each.running]
        return len(running) == 1

    farm.wait(alone, seconds=600, for_="the end of the machine for which no trial is left")
    farm.preempt(running[0], notice_s=0)
    process.wait(1800)
    reader.join()
    out = "".join(lines)
    print(out)
    assert process.returncode == 0, out
    machines = farm.since(before)
    assert len(machines) == 3 and all(each.spot for each in machines), "two for four parts, and one that was lost"
    assert not any(each.running for each in machines)
    assert "of $1.00 on machines" in out

    home = project.run(*words, three, "search.name=home", "search.parallel=2", "search.warm=false", timeout=1500)
    assert home.code == 0, home.out
    found = {name: _result(project, name) for name in ("away", "home")}
    assert 0 < found["away"]["usd"] < 1
    assert found["away"]["winner"]["number"] == found["home"]["winner"]["number"]
    for one, other in zip(found["away"]["trials"], found["home"]["trials"], strict=True):
        assert one["setting"] == other["setting"] and one["rung"] == other["rung"]
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-6)

    more = [*words, *away[1:], three, "search.name=killed", "search.max_usd=1"]
    process = project.start(*more)
    farm.wait(lambda: steps("step-00000010/manifest.json", "killed"), seconds=1200, for_="step 10 of a trial")
    process.kill()
    process.wait()
    again = project.run(*more, timeout=1500)
    assert again.code == 0, again.out
    assert not farm.instances() and len(farm.since([*before, *machines])) == 2, "the killed driver's are used again"
    assert _result(project, "killed")["winner"]["number"] == found["home"]["winner"]["number"]


def _result(project: Project, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project.home / "searches" / name / "search.json").read_text())["result"]
    return found
