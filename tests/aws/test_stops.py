"""Every way in which a launch can end badly on the stand-in: nothing may be left running, and the exit code says so."""

import signal
from collections.abc import Callable

import pytest
from farm import Farm
from project import Project, read_until, terminated
from sdk import sky

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

Projects = Callable[..., Project]

SLOW = [
    "+callbacks.slow._target_=slowly.Slow",
    "+callbacks.slow.seconds=1",
    "plugins=[slowly]",
    "max_steps=100",
    "checkpoint.every_steps=5",
    "log.every_seconds=0",
]


def last_error(text: str) -> str:
    """Return the line in which a command says why it failed."""
    return next(
        line for line in reversed(text.splitlines()) if line.startswith(("error:", "interrupted:", "preempted:"))
    )


@pytest.fixture(scope="module")
def project(new_project: Projects) -> Project:
    """What the two tests of `make test` share."""
    return new_project(infra="aws/us-east-1", idle_minutes_to_autostop=5)


def test_a_killed_driver_leaves_its_job_the_same_command_attaches_and_ctrl_c_ends_it(
    farm: Farm, project: Project, small: list[str]
) -> None:
    """One machine, three drivers: one is killed, one attaches, and Ctrl-C has it save and take the machine down,
    which is refused once."""
    before = farm.instances(gone=True)
    words = [*small, *SLOW, "compute=m5.large", "max_steps=1000"]
    process = project.start(*words)
    read_until(process, "step 7/1000")
    process.kill()
    process.wait()
    (machine,) = farm.instances()
    assert sky(farm, "autodown", cluster=machine.cluster)[0] == [5, True]
    process = project.start(*words)
    output = read_until(process, "attaching to the job that runs already")
    output += read_until(process, "step 7/1000")
    with farm.denied("ec2", "TerminateInstances", times=1):
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output + rest
    assert not farm.instances() and len(farm.since(before)) == 1
    asked = [call["error"] for call in farm.calls(action="TerminateInstances") if machine.id in str(call["params"])]
    assert asked == ["UnauthorizedOperation", ""]
    assert list((project.run_folder() / "checkpoints").rglob("manifest.json")), "what was saved there came home"


def test_gpus_that_are_not_there_end_a_job_before_data_is_read(farm: Farm, project: Project, small: list[str]) -> None:
    before = farm.instances(gone=True)
    words = [word for word in small if not word.startswith("compute.device")]
    done = project.run(*words, "compute=4xa10g", timeout=900)
    assert done.code == 1 and "4 GPUs were asked for on every machine, torch finds 0" in last_error(done.out)
    (machine,) = farm.since(before)
    assert "training 20 steps" not in farm.log(machine)
    assert machine.type == "g5.12xlarge" and not farm.instances()


def test_a_setup_that_fails_on_machines_that_cannot_be_taken_down(
    farm: Farm, new_project: Projects, small: list[str]
) -> None:
    """Two harms at once: why it failed is told, and what is left running with the command that ends it."""
    project = new_project(infra="aws/us-east-1", instance_type="m5.large", idle_minutes_to_autostop=5)
    file = project.place / "pyproject.toml"
    file.write_text(file.read_text().replace("train = [", "train = [\n    'no-such-package==1',"))
    with farm.denied("ec2", "TerminateInstances"):
        done = project.run(*small, timeout=900)
        (machine,) = farm.instances()
    farm.run(["sky", "down", "--yes", machine.cluster], timeout=200, check=True)
    assert not farm.instances()
    assert done.code == 1 and "no-such-package" in done.out, done.out
    message = last_error(done.out)
    assert f"`sky down {machine.cluster}`" in message and "5 idle minutes" in message


@pytest.mark.soak
def test_ctrl_c_while_machines_come_up(farm: Farm, new_project: Projects, small: list[str]) -> None:
    project = new_project(infra="aws/us-east-1", instance_type="m5.large")
    process = project.start(*small)
    output = read_until(process, "Launching on AWS")
    farm.wait(lambda: farm.instances(), seconds=120)
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output + rest
    assert not farm.instances()


@pytest.mark.soak
def test_after_ctrl_c_the_same_command_goes_on(farm: Farm, new_project: Projects, small: list[str]) -> None:
    project = new_project(infra="aws/us-east-1", instance_type="m5.large")
    process = project.start(*small, *SLOW)
    output = read_until(process, "step 7/100")
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output + rest
    assert not farm.instances()
    again = project.run(*small, *SLOW, timeout=900)  # the same command: whatever else is another run
    assert again.code == 0 and "resuming from step" in again.out


@pytest.mark.soak
def test_machines_that_cannot_be_taken_down_are_named(farm: Farm, new_project: Projects, small: list[str]) -> None:
    project = new_project(infra="aws/us-east-1", instance_type="m5.large", idle_minutes_to_autostop=5)
    with farm.denied("ec2", "TerminateInstances"):
        done = project.run(*small, timeout=900)
        (machine,) = farm.instances()
    farm.run(["sky", "down", "--yes", machine.cluster], timeout=200, check=True)
    assert not farm.instances()
    assert done.code == 1
    message = last_error(done.out)
    assert f"`sky down {machine.cluster}`" in message and "5 idle minutes" in message


@pytest.mark.soak
def test_a_setup_that_fails_is_told_with_its_last_lines(farm: Farm, new_project: Projects, small: list[str]) -> None:
    project = new_project(infra="aws/us-east-1", instance_type="m5.large")
    file = project.place / "pyproject.toml"
    file.write_text(file.read_text().replace("train = [", "train = [\n    'no-such-package==1',"))
    before = farm.instances(gone=True)
    done = project.run(*small, timeout=900)
    assert done.code == 1 and "preparing the machine failed" in done.out and "no-such-package" in done.out
    assert not farm.instances() and len(farm.since(before)) == 1


@pytest.mark.soak
def test_a_job_is_left_alone_if_asked_for_and_the_same_command_brings_its_results(
    farm: Farm, new_project: Projects, small: list[str]
) -> None:
    project = new_project(infra="aws/us-east-1", instance_type="m5.large", idle_minutes_to_autostop=5)
    before = farm.instances(gone=True)
    left = project.run(*small, *SLOW, "launch.detach=true", timeout=900)
    (machine,) = farm.instances()
    with farm.declare(machine.cluster):
        assert left.code == 0 and f"detached: the job runs on the cluster {machine.cluster}" in left.out
        again = project.run(*small, *SLOW, timeout=900)
    assert again.code == 0 and "attaching to the job that runs already" in again.out
    assert project.result()["steps"] == 100
    assert len(farm.since(before)) == 1 and terminated(farm).count(machine.id) == 1


@pytest.mark.soak
def test_two_pipelines_at_once_do_not_disturb_each_other(farm: Farm, new_project: Projects, small: list[str]) -> None:
    one = new_project(infra="aws/us-east-1", instance_type="m5.large")
    two = new_project(infra="aws/us-west-2", instance_type="m5.large")
    runs = [one.start(*small, "seed=1"), two.start(*small, "seed=2")]
    ended = [process.communicate(timeout=1200)[0] for process in runs]
    assert [process.returncode for process in runs] == [0, 0], "\n".join(ended)
    assert one.result()["steps"] == two.result()["steps"] == 20
    assert not farm.instances()
