"""The files of configs/kubernetes: against the API's own models, against what the run needs, and their command in two
network namespaces with exactly the variables that Kubernetes sets. No cluster."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from machines_apart import BUCKET, S3, Cable, missing

from skytune.config import LaunchConfig
from skytune.launch.multinode.launcher import FAREWELL_SECONDS, LOGS_SECONDS
from skytune.launch.multinode.topology import nodes_of

ROOT = Path(__file__).resolve().parents[2]
SERVICE, JOB = yaml.safe_load_all((ROOT / "configs/kubernetes/job.yaml").read_text())
(PYTORCHJOB,) = yaml.safe_load_all((ROOT / "configs/kubernetes/pytorchjob.yaml").read_text())
PODS = {
    "job": JOB["spec"]["template"],
    **{name: spec["template"] for name, spec in PYTORCHJOB["spec"]["pytorchReplicaSpecs"].items()},
}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def variables(pod: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container(pod)["env"]}


@pytest.mark.parametrize(
    ("model", "values"),
    [("V1Service", SERVICE), ("V1Job", JOB), *(("V1PodTemplateSpec", pod) for pod in PODS.values())],
)
def test_the_api_knows_every_key(model: str, values: dict[str, Any]) -> None:
    """What a model does not know is gone when it comes back; what it wants and does not get is an error."""
    client = pytest.importorskip("kubernetes.client")
    api = client.ApiClient()
    found = api._ApiClient__deserialize(values, model)
    assert api.sanitize_for_serialization(found) == values


def test_the_pods_of_a_job_find_each_other() -> None:
    name, spec = JOB["metadata"]["name"], JOB["spec"]
    pod, given = spec["template"]["spec"], variables(spec["template"])
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == int(given["NNODES"])
    assert SERVICE["spec"]["clusterIP"] == "None"
    assert SERVICE["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert pod["subdomain"] == SERVICE["metadata"]["name"]
    assert given["MASTER_ADDR"] == f"{name}-0.{pod['subdomain']}"
    nodes = nodes_of(LaunchConfig(), {**given, "JOB_COMPLETION_INDEX": "1"})
    assert (nodes.count, nodes.rank, nodes.address, nodes.source) == (2, 1, "skytune-0.skytune", "Kubernetes")


@pytest.mark.parametrize("name", PODS)
def test_a_pod_has_the_time_to_save(name: str) -> None:
    launch = LaunchConfig()
    needed = launch.timeouts.stop + launch.timeouts.kill + LOGS_SECONDS + FAREWELL_SECONDS
    assert PODS[name]["spec"]["terminationGracePeriodSeconds"] > needed


def test_what_comes_back_and_what_does_not() -> None:
    rules = JOB["spec"]["podFailurePolicy"]["rules"]
    codes = {rule["onExitCodes"]["values"][0]: rule["action"] for rule in rules if "onExitCodes" in rule}
    assert codes == {75: "Ignore", 76: "FailJob"}
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {
        container(PODS["job"])["name"]
    }
    assert JOB["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert container(PODS["Master"])["name"] == "pytorch"


@pytest.mark.parametrize("name", PODS)
def test_the_words_are_a_configuration(name: str) -> None:
    from skytune.config.compose import compose_run

    pod = container(PODS[name])
    assert pod["command"] == ["python", "src/run.py"]
    config = compose_run(ROOT / "configs", pod["args"], None, None)
    assert config.checkpoint.store == "s3://BUCKET/runs"


def kubeflow_variables(host: str, index: int) -> dict[str, str]:
    """Return what the training operator (1.7) sets in the pods of a PyTorchJob of a master and one worker."""
    address = {"MASTER_ADDR": host, "MASTER_PORT": "23456"}
    place = {"WORLD_SIZE": "2", "RANK": str(index), "PYTHONUNBUFFERED": "1"}
    torchrun = {"PET_MASTER_ADDR": host, "PET_MASTER_PORT": "23456", "PET_NNODES": "2", "PET_NODE_RANK": str(index)}
    torchrun["PET_NPROC_PER_NODE"] = "auto"
    return {**address, **place, **torchrun}


def test_the_pods_of_a_pytorchjob_find_each_other() -> None:
    given = {**variables(PODS["Worker"]), **kubeflow_variables("skytune-master-0", 1)}
    nodes = nodes_of(LaunchConfig(), given)
    assert (nodes.count, nodes.rank, nodes.address, nodes.port) == (2, 1, "skytune-master-0", 23456)


@pytest.mark.soak
@pytest.mark.skipif(bool(reason := missing()), reason=reason or "here")
@pytest.mark.parametrize("engine", ["Indexed Job", "PyTorchJob"])
def test_the_containers_command_in_two_namespaces(
    engine: str, new_checkout: Callable[[], Any], small: list[str]
) -> None:
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    checkout, cable = new_checkout(), Cable()
    kubeflow = engine == "PyTorchJob"
    # The operator names the service of a job's master so.
    host = "skytune-master-0" if kubeflow else variables(PODS["job"])["MASTER_ADDR"]
    server = subprocess.Popen(
        cable.inside(0, [sys.executable, "-c", BUCKET]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **S3},
    )
    folders = [Path("/etc/netns") / name for name in cable.names]
    pods: list[subprocess.Popen[str]] = []
    try:
        for folder in folders:  # what the cluster's DNS says; `ip netns exec` lays it over /etc
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{cable.addresses[0]} {host}\n")
        assert server.stdout is not None and server.stdout.readline() == b"open\n"
        words = [*small, "epochs=1", "launch.num_processes=2", "checkpoint.store=s3://share/runs"]
        for index in (0, 1):
            home = checkout.home / f"pod-{index}"
            home.mkdir()
            pod = PODS[("Master", "Worker")[index] if kubeflow else "job"]
            by_engine = kubeflow_variables(host, index) if kubeflow else {"JOB_COMPLETION_INDEX": str(index)}
            env = {
                **checkout.env,
                **S3,
                **variables(pod),
                **by_engine,
                "SKYTUNE_HOME": str(home),
                "HOME": str(home),
                "ZENML_CONFIG_PATH": str(home / "zenml"),
            }
            command = cable.inside(index, [sys.executable, "src/run.py", *words])
            pods.append(
                subprocess.Popen(
                    command,
                    cwd=checkout.source,
                    env=env,
                    text=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
            )
        lines = [pod.communicate(timeout=600)[0] for pod in pods]
        assert [pod.returncode for pod in pods] == [0, 0], "\n".join(lines)
        assert "2 x cpu" in lines[0]
        assert lines[1].splitlines()[-1] == "the run is done; node 0 has the results"
        assert not (checkout.home / "pod-1" / "zenml").exists(), "no ZenML on the other machine"
    finally:
        for process in (*pods, server):
            process.kill()
            process.wait()
        cable.remove()
        for folder in folders:
            (folder / "hosts").unlink(missing_ok=True)
            folder.rmdir()
