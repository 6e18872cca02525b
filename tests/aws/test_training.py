"""Whole pipelines from `src/run.py` on the stand-in: the real SkyPilot, torchrun on its machines, results at home.

What is asserted comes from the stand-in's list of machines and from their own logs, not from what we say of ourselves.
"""

import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from farm import Farm, Instance
from project import Project, RunSummary, terminated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TOLD = ["+callbacks.tell._target_=slowly.Tell", "plugins=[slowly]"]
CANARY = "hf_canary0123456789abcdef"


@dataclass
class Ran:
    """A finished command and its machines."""

    project: Project
    done: RunSummary
    machines: list[Instance]


@pytest.fixture(scope="module")
def together(farm: Farm, new_project: Callable[..., Project], small: list[str]) -> Iterator[tuple[Ran, Ran]]:
    """Two commands of two people at once on one account: one that trains, one whose own code fails.

    The first: a spot machine, its type from the command line, its place from the stack. The second, anywhere on AWS:
    spot is sold out for it everywhere, and it asked for the full price then, for which one region and one zone of the
    other are sold out too.
    """
    good = new_project(infra="aws/us-east-1", instance_type="m5.large")
    (good.place / "junk.bin").write_bytes(bytes(50_000_000))
    bad = new_project(infra="aws", instance_type="m5.large", use_spot=True)
    broken = ["+callbacks.broken._target_=slowly.Broken", "plugins=[slowly]"]
    before = farm.instances(gone=True)
    with (
        farm.no_capacity("m5.large", spot=True),
        farm.no_capacity("m5.large", region="us-east-1"),
        farm.no_capacity("m5.large", zone="us-west-2a"),
    ):
        started = [
            good.start(*small, "compute=m6i.large", "compute.use_spot=true", *TOLD, HF_TOKEN=CANARY),
            bad.start(*small, *broken, "compute.recovery.on_demand_fallback=true"),
        ]
        ended = [
            RunSummary(process.returncode, out) for process in started for out in [process.communicate(timeout=900)[0]]
        ]
    for each in ended:
        print(each.out)
    machines = farm.since(before)
    first, second = ([each for each in machines if each.type == type_] for type_ in ("m6i.large", "m5.large"))
    yield Ran(good, ended[0], first), Ran(bad, ended[1], second)


@pytest.fixture(scope="module")
def single(together: tuple[Ran, Ran]) -> Ran:
    """The one that trains."""
    return together[0]


def test_a_pipeline_trains_on_one_machine(farm: Farm, single: Ran) -> None:
    project, done = single.project, single.done
    assert done.code == 0, done.out
    (machine,) = single.machines
    assert (machine.type, machine.spot, machine.region) == ("m6i.large", True, "us-east-1")
    assert terminated(farm).count(machine.id) == 1 and not machine.running
    assert "training 20 steps" in farm.log(machine)
    run = project.last_run()
    (ended,) = [call for call in farm.calls(action="TerminateInstances") if machine.id in str(call["params"])]
    assert ended["time"] < run["steps"]["evaluate_model"]["start"], "the machine costs nothing while others work"
    assert run["status"] == "completed" and {step["status"] for step in run["steps"].values()} == {"completed"}
    model = Path(run["steps"]["train_model"]["outputs"]["model"])
    assert (model / "model.safetensors").is_file()
    assert run["steps"]["train_model"]["metadata"]["machine_attempts"] == 1
    assert 0 < run["steps"]["train_model"]["metadata"]["cost_usd"] < 0.1
    result = project.result()
    assert result["world_size"] == 1 and result["phases"]["provision_s"] > 0 and result["cost"]["phases"]["job_s"] > 0
    assert "$0.04 an hour" in done.out and re.search(r"cost: \$0\.0\d+: .* on m6i\.large \(spot", done.out)


def test_only_code_and_inputs_are_sent(farm: Farm, single: Ran) -> None:
    (machine,) = single.machines
    sent = farm.files(machine, "sky_workdir/**/*")
    assert (
        "sky_workdir/code/skytune/training/worker.py" in sent
        and "sky_workdir/job/inputs/train/data-00000.arrow" in sent
    )
    assert not [name for name in sent if "junk" in name or ("__pycache__" in name and "/job/" in name)]
    code = [name for name in sent if not name.startswith("sky_workdir/job/")]
    assert sum(len(farm.read(machine, name)) for name in code if name.endswith((".py", ".txt"))) < 5e6


def test_a_secret_reaches_the_workers_and_no_file(farm: Farm, single: Ran) -> None:
    project, done = single.project, single.done
    (machine,) = single.machines
    assert CANARY not in done.out and CANARY not in farm.log(machine)
    # Nor do copies stay behind: the project's own home, SkyPilot's, its server's database of requests.
    where = [str(project.place), str(farm.home)]
    found = subprocess.run(["grep", "-rl", CANARY, *where], capture_output=True, text=True, check=False).stdout
    assert found == ""
    assert f"token of {len(CANARY)} letters" in done.out


def test_the_same_run_again_starts_no_machine(farm: Farm, single: Ran, small: list[str]) -> None:
    project = single.project
    before = len(farm.calls(action="RunInstances"))
    done = project.run(*small, *TOLD, "compute=2x8xa100")  # where it runs is no part of what is cached
    assert done.code == 0 and len(farm.calls(action="RunInstances")) == before
    assert project.last_run()["steps"]["train_model"]["status"] == "cached"


def test_a_mistake_is_not_tried_again_and_the_full_price_is_paid_if_asked_for(
    farm: Farm, together: tuple[Ran, Ran]
) -> None:
    project, done = together[1].project, together[1].done
    assert done.code == 1
    assert "going on at the full price" in done.out and "InsufficientInstanceCapacity" in done.out
    assert "callbacks.broken failed in on_step_end: RuntimeError: a mistake of the user's" in done.out
    (machine,) = together[1].machines
    assert (machine.zone, machine.spot) == ("us-west-2b", False) and terminated(farm).count(machine.id) == 1
    run = project.last_run()
    assert run["steps"]["train_model"]["status"] == "failed" and "evaluate_model" not in run["steps"]


def test_two_at_once_do_not_disturb_each_other(farm: Farm, together: tuple[Ran, Ran]) -> None:
    (one,), (other,) = together[0].machines, together[1].machines
    assert one.cluster != other.cluster
    asked = {call["time"]: str(call["params"]) for call in farm.calls(action="TerminateInstances")}
    assert not [text for text in asked.values() if one.id in text and other.id in text]
    assert "a mistake" not in together[0].done.out + farm.log(one)
    assert all("training 20 steps" in farm.log(each) for each in (one, other))
    assert CANARY not in farm.log(other) and "letters" not in together[1].done.out


FOUR = ["launch.num_processes=4", "launch.threads=1"]
"""As many threads everywhere: a product may add up in another order with more."""


@pytest.fixture(scope="module")
def preempted(farm: Farm, new_project: Callable[..., Project], small: list[str]) -> Iterator[dict[str, Any]]:
    """Two spot machines with two processes each, 100 steps, held after step 35: one machine is taken away without a
    notice. Those that replace both are held after step 45: one of them gets a notice, and then they go on.

    Nothing rests on time: a step can only be saved before its attempt is held, and the notice is longer than EC2's,
    since the machines are taken down as soon as all is saved."""
    with farm.inside():
        s3 = farm.client("s3")
        s3.create_bucket(Bucket="skytune-checkpoints")
    project = new_project(infra="aws/us-west-2", instance_type="m5.large", use_spot=True, num_nodes=2)
    words = [*small, "max_steps=100", "checkpoint.every_steps=10", "log.every_seconds=0", *FOUR]
    hold = ["+callbacks.hold._target_=slowly.Hold", "plugins=[slowly]"]
    before = farm.instances(gone=True)
    process = project.start(*words, *hold, "checkpoint.store=s3://skytune-checkpoints/runs")
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or []))
    reader.start()

    def other_machine(saved: int) -> Instance:
        """Return the machine that is not the head, once a step is saved."""

        def there() -> bool:
            assert process.poll() is None, "".join(lines)
            with farm.inside():
                found = s3.list_objects_v2(Bucket="skytune-checkpoints").get("Contents", [])
            return any(each["Key"].endswith(f"step-{saved:08d}/manifest.json") for each in found)

        farm.wait(there, seconds=1200, for_=f"step {saved}")
        return next(each for each in farm.instances() if not each.head)

    farm.preempt(other_machine(saved=30), notice_s=0)
    farm.preempt(other_machine(saved=40), notice_s=1200)
    for each in farm.instances():
        farm.execute(each, ["touch", "/tmp/go-on"])
    process.wait(1200)
    reader.join()
    out = "".join(lines)
    print(out)
    yield {"project": project, "out": out, "code": process.returncode, "machines": farm.since(before)}


def test_a_run_on_two_machines_survives_losing_them(farm: Farm, preempted: dict[str, Any]) -> None:
    assert preempted["code"] == 0, preempted["out"]
    machines: list[Instance] = preempted["machines"]
    assert len(machines) == 6 and not any(each.running for each in machines)
    project: Project = preempted["project"]
    result = project.result()
    assert result["world_size"] == 4 and result["steps"] == 100 and result["resumed_from"] > 45
    assert [each["ended"] for each in result["cost"]["attempts"]] == ["lost", "preempted", "done"]
    assert re.search(r"resuming from step 30 .*resuming from step", preempted["out"], re.DOTALL)
    assert result["cost"]["phases"]["lost_s"] > 0 and result["machine_attempts"] == 3
    # Each is rounded to 0.0001 dollars.
    assert result["cost"]["usd"] >= sum(each["usd"] for each in result["cost"]["attempts"]) - 2.1e-4
    run = project.last_run()
    assert run["status"] == "completed"


def test_the_weights_are_those_of_a_run_at_home(preempted: dict[str, Any], small: list[str], tmp_path: Path) -> None:
    """To the bit, though it was taken away twice and went on."""
    import torch
    from safetensors.torch import load_file

    project: Project = preempted["project"]
    there = load_file(project.run_folder() / "outputs" / "model" / "model.safetensors")
    words = [*small, "max_steps=100", *FOUR, "compute=local", "compute.device=cpu", "cache=false"]
    command = str(project.place / "src" / "run.py")
    project.python(command, *words, timeout=600, SKYTUNE_HOME=str(tmp_path / "home"))
    (here,) = (tmp_path / "home" / "runs").glob("*/outputs/model/model.safetensors")
    for name, value in load_file(here).items():
        assert torch.equal(there[name], value), f"{name}: {(there[name] - value).abs().max():.1e} apart"
