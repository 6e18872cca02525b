"""The parts of the SkyPilot launcher that need no SkyPilot: which machine, what is sent and run, what an end means.

With the real SkyPilot it is tested in `tests/aws`.
"""

import http.server
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.common.background import Late, Pending
from skytune.config import ComputeConfig, ConfigError, LaunchConfig, RecoveryConfig, RunConfig, UserError, from_dict
from skytune.distributed.preemption import FLAG_FILE
from skytune.job import Job, JobDir, RankError
from skytune.launch.local import agent
from skytune.launch.multinode.topology import Nodes, node_addresses
from skytune.launch.remote import upload
from skytune.launch.remote.exchange import forget_last_attempt
from skytune.launch.remote.handed_on import secrets, worker_environment
from skytune.launch.remote.machine import machines_asked, merged, processes
from skytune.launch.remote.node import check_gpus
from skytune.launch.remote.outcome import ENDED, End, JobVerdict, verdict
from skytune.launch.skypilot import scripts
from skytune.launch.skypilot.messages import explained, reasons, telling
from skytune.launch.skypilot.monitor import PREFIX, JobMonitor
from skytune.launch.skypilot.secret_cleanup import forget
from skytune.pricing.cost import Attempt, Clock, Cost, cost_of


def config(**groups: Any) -> RunConfig:
    return from_dict(RunConfig, groups)


# Which machines.


def test_a_machine_asked_for_replaces_the_stacks_size_but_not_its_place() -> None:
    stack = {"infra": "aws/us-east-1", "instance_type": "g5.xlarge", "disk_size": 100, "recovery": {"max_attempts": 7}}
    found = merged(stack, ComputeConfig(accelerators="A10G:4", use_spot=True))
    assert (found.instance_type, found.accelerators, found.infra) == (None, "A10G:4", "aws/us-east-1")
    assert (found.disk_size, found.use_spot, found.num_nodes, found.recovery.max_attempts) == (100, True, 1, 7)
    assert merged(stack, ComputeConfig(recovery=RecoveryConfig(max_attempts=2))).recovery.max_attempts == 2


def test_a_place_asked_for_voids_what_lies_below_it() -> None:
    stack = {"infra": "aws", "region": "us-east-1", "zone": "us-east-1a"}
    assert merged(stack, ComputeConfig(infra="gcp")).region is None
    moved = merged(stack, ComputeConfig(region="us-west-2"))
    assert (moved.infra, moved.region, moved.zone) == ("aws", "us-west-2", None)


def test_a_stacks_nonsense_is_named() -> None:
    with pytest.raises(ConfigError, match=r"compute\.num_nodes='two'"):
        merged({"num_nodes": "two"}, ComputeConfig())


def test_only_what_skypilot_can_do_asks_for_machines() -> None:
    assert machines_asked(ComputeConfig(local=True, usd_per_hour=1.0)) == {}
    assert machines_asked(ComputeConfig(use_spot=False)) == {"use_spot": False}
    assert machines_asked(ComputeConfig(resources={"x": 1})) == {"resources": {"x": 1}}


@pytest.mark.parametrize(
    ("compute", "infra"),
    [
        ({"infra": "aws"}, "aws"),
        ({"infra": "aws/us-east-1"}, "aws/us-east-1"),
        ({"infra": "aws/us-east-1", "region": "us-west-2"}, "aws/us-west-2"),
        ({"infra": "aws", "zone": "us-east-1a"}, "aws/*/us-east-1a"),
        ({"region": "us-east-1"}, "*/us-east-1"),
        ({"infra": "k8s"}, "k8s"),
    ],
)
def test_the_place_is_written_as_skypilot_does(compute: dict[str, Any], infra: str) -> None:
    assert scripts.resources(ComputeConfig(**compute))["infra"] == infra


def test_other_resources_are_handed_on() -> None:
    found = scripts.resources(ComputeConfig(cpus="4+", memory=16, resources={"disk_tier": "best"}), use_spot=True)
    assert found == {"cpus": "4+", "memory": "16", "use_spot": True, "disk_tier": "best"}


def test_processes_are_shared_out_evenly() -> None:
    assert processes(ComputeConfig(num_nodes=2), LaunchConfig(num_processes=4), 0) == (2, 2)
    assert processes(ComputeConfig(num_nodes=2), LaunchConfig(), 8) == (2, 8)
    assert processes(ComputeConfig(device="cpu"), LaunchConfig(), 8) == (1, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="num_processes=3"):
        processes(ComputeConfig(num_nodes=2), LaunchConfig(num_processes=3), 0)
    with pytest.raises(ConfigError, match="which has 1 GPUs"):
        processes(ComputeConfig(), LaunchConfig(num_processes=2), 1)


# On a machine.


def test_a_uv_that_is_not_the_pinned_one_does_not_run(tmp_path: Path) -> None:
    """The real script of a machine, on which somebody else answers for the package index."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    programs.mkdir()
    (home / "sky_workdir").mkdir(parents=True)
    for name, text in {"uv": "echo uv 0.1.0; touch ~/ran", "curl": 'echo evil > "$3"; echo "$4" > ~/asked'}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    env = {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin"}
    run = subprocess.run(["bash", "-c", scripts.setup_script()], env=env, capture_output=True, text=True, check=False)
    assert run.returncode != 0 and "uv.whl: FAILED" in run.stdout
    assert f"/uv-{scripts.UV}-py3-none-" in (home / "asked").read_text()
    assert sorted(path.name for path in home.iterdir()) == [
        "asked",
        "ran",
        "sky_workdir",
    ]


def test_blank_lines_among_the_addresses_are_none(tmp_path: Path) -> None:
    addresses = node_addresses("10.0.0.1\n10.0.0.2\n\n")
    assert addresses == ["10.0.0.1", "10.0.0.2"]
    words = " ".join(agent(JobDir(tmp_path), Nodes(2, 1), 4, addresses[0], 29517))
    assert "--nproc-per-node 4 --log-dir /dev/null --nnodes 2 --node-rank 1 --master-addr 10.0.0.1" in words


def test_missing_gpus_are_refused_before_data_is_read() -> None:
    check_gpus(0)
    with pytest.raises(UserError, match="64 GPUs were asked for on every machine, torch finds"):
        check_gpus(64)


@pytest.mark.parametrize(
    ("smi", "message"),
    [
        (
            "| NVIDIA-SMI 535.183.01  Driver Version: 535.183.01  CUDA Version: 12.2 |",
            r"this machine's driver \(535\.183\.01\) is for CUDA 12\.2, torch [\w.+]+ needs 13\.0: compute\.image_id",
        ),
        (
            "| NVIDIA-SMI 580.65.06  Driver Version: 580.65.06  CUDA Version: 13.0 |",
            r"4 GPUs were asked for on every machine, torch finds 0 \(driver 580\.65\.06\)",
        ),
        ("", r"torch finds 0 \(no NVIDIA driver answers there\)"),
    ],
    ids=["too-old", "new-enough", "none"],
)
def test_a_driver_too_old_for_torch_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smi: str, message: str
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{smi}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=message):
        check_gpus(4)
    check_gpus(0)


def test_a_machine_without_its_gpus_leaves_the_reason(tmp_path: Path) -> None:
    env = {**os.environ, "SKYTUNE_GPUS_EACH": "4", "SKYTUNE_PROCESSES_EACH": "4", "SKYPILOT_NODE_RANK": "1"}
    words = [sys.executable, "-m", "skytune.launch.skypilot.node", str(tmp_path)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "4 GPUs were asked for" in done.stdout
    assert JobDir(tmp_path).read_errors()[4].user


def test_the_run_script_fails_when_its_command_fails(tmp_path: Path) -> None:
    script = scripts.run_script(ComputeConfig(max_hours=1)).replace("~/sky_workdir", str(tmp_path))
    assert script.startswith("set -e\n") and "timeout --signal=TERM --kill-after=120 3840" in script
    assert subprocess.run(["bash", "-c", f"{script}\ntrue"], capture_output=True, check=False).returncode != 0


def test_a_job_that_takes_too_long_is_ended_with_the_reason(tmp_path: Path, run_job: Any) -> None:
    done = run_job(rows=16, validation=8, test=8)
    job = JobDir(tmp_path / "again")
    held = done.job.job
    shutil.copytree(done.job.inputs, job.inputs)
    held.config.launch.timeouts.stop = 1.0
    job.write_job(held)
    env = {**os.environ, "SKYTUNE_MAX_SECONDS": "1"}
    words = [sys.executable, "-m", "skytune.launch.skypilot.node", str(job.root)]
    ended = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=600)
    assert ended.returncode == 1 and "ended after compute.max_hours=" in ended.stdout
    assert any(error.user for error in job.read_errors().values())


# What is sent.


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    """A job directory with small inputs."""
    made = JobDir(tmp_path / "runs" / "a-run-0123456789ab")
    (made.inputs / "train").mkdir(parents=True)
    (made.inputs / "train" / "data-00000.arrow").write_bytes(bytes(100_000))
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    os.symlink(weights, made.inputs / "weights")
    made.write_job(Job(kind="train", run_key="k", config=config(), labels=["a", "b"]))
    return made


def test_what_is_sent_is_code_and_inputs(job: JobDir, tmp_path: Path) -> None:
    place = tmp_path / "upload"
    upload.stage(job, place)
    assert (place / "code" / "skytune" / "training" / "worker.py").is_file()
    assert (place / "job" / "inputs" / "weights" / "config.json").is_file()
    assert not (place / "job" / "inputs" / "weights").is_symlink() and not list(place.rglob("__pycache__"))
    wanted = (place / "requirements.txt").read_text().split()
    assert any(text.startswith("torch==") for text in wanted) and not any(text.startswith("zenml") for text in wanted)
    assert "torch==" in (place / "constraints.txt").read_text()
    done = subprocess.run(
        [sys.executable, str(place / "code/skytune/launch/bootstrap.py"), "skytune.training.worker"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": ""},
    )
    assert "usage:" in done.stderr


def test_the_users_modules_are_sent_without_what_lies_about(job: JobDir, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("mine.py", "helpers/__init__.py", "notes/secret.py", "venv/lib/x.py", ".git/config", "old/big.py"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x = 1\n")
    (project / "env3").mkdir()
    (project / "env3" / "pyvenv.cfg").write_text("")
    (project / "env3" / "y.py").write_text("")
    (project / "data.bin").write_bytes(bytes(50_000_000))
    (project / ".skyignore").write_text("# not for machines\nnotes/\nold/*.py\n")
    held = job.job
    held.paths, held.config.plugins = [str(project), str(tmp_path / "nowhere")], ["mine"]
    job.write_job(held)
    upload.stage(job, tmp_path / "upload")
    own = tmp_path / "upload" / "own" / "0"
    assert sorted(path.relative_to(own).as_posix() for path in own.rglob("*.*")) == ["helpers/__init__.py", "mine.py"]
    assert JobDir(tmp_path / "upload" / "job").job.paths == ["own/0"]


def test_code_that_is_none_is_refused(job: JobDir, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.py").write_text("")
    (project / "vectors.json").write_bytes(bytes(6_000_000))
    held = job.job
    held.paths, held.config.plugins = [str(project)], ["mine"]
    job.write_job(held)
    with pytest.raises(UserError, match=r"vectors\.json \(6\.0 MB\).*\.skyignore"):
        upload.stage(job, tmp_path / "upload")


def test_a_metrics_folder_is_refused_before_there_are_machines(
    job: JobDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "mine.py").write_text("")
    monkeypatch.chdir(tmp_path)
    held = job.job
    for name in ("./mine", str(tmp_path / "mine"), "mine/mine.py"):
        held.config.eval.metrics = ["accuracy", name]
        job.write_job(held)
        with pytest.raises(UserError, match=f"^eval.metrics: {name}: ") as refused:
            upload.stage(job, tmp_path / "upload")
        assert "eval.extra_metrics.NAME._target_" in str(refused.value)
    held.config.eval.metrics = ["accuracy", "evaluate-metric/mae"]
    job.write_job(held)
    upload.stage(job, tmp_path / "upload")


def test_a_store_of_the_cloud_brings_its_package() -> None:
    assert not any(text.startswith("s3fs") for text in upload.requirements(config()))
    assert any(text.startswith("s3fs") for text in upload.requirements(config(checkpoint={"store": "s3://bucket/x"})))
    assert not any(text.startswith("deepspeed") for text in upload.requirements(config()))
    assert any(text.startswith("deepspeed") for text in upload.requirements(config(strategy={"name": "zero3"})))


def test_secrets_are_no_plain_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-canary")
    envs = worker_environment("x", 1, 0, None)
    hidden = secrets(config())
    assert hidden["HF_TOKEN"] == "hf_canary" and "aws-canary" not in json.dumps([envs, hidden])
    task = scripts.task("train", "/x", ComputeConfig(), envs, hidden)
    assert "canary" not in json.dumps({key: value for key, value in task.items() if key != "secrets"})


# What an end means.


def end(job: str, cluster: str = "UP", status: str | None = None, user: bool | None = None) -> JobVerdict:
    errors = {} if user is None else {0: RankError(type="X", message="m", user=user)}
    return verdict(End(job=job, cluster=cluster, result=None if status is None else {"status": status}, errors=errors))


def test_what_an_end_means() -> None:
    assert end("SUCCEEDED", status="completed") is JobVerdict.done
    assert end("SUCCEEDED") is JobVerdict.failed, "SkyPilot's word without a result"
    assert end("SUCCEEDED", status="preempted") is JobVerdict.preempted
    assert end("FAILED", user=False) is JobVerdict.failed, "a mistake of the user's is not tried again"
    assert end("FAILED", cluster="INIT", user=False) is JobVerdict.lost, "a peer that vanished"
    assert end("FAILED", cluster="INIT", user=True) is JobVerdict.lost, "it says that its peers are gone"
    assert end("FAILED", user=True, status="preempted") is JobVerdict.failed, "its time was over: it was told to save"
    assert end("LOST", cluster="GONE") is JobVerdict.lost
    assert end("FAILED", cluster="GONE", status="completed") is JobVerdict.done, "taken away when all was done"
    assert end("SUCCEEDED", status="paused") is JobVerdict.done, "stopped at the step that was asked for"
    assert end("FAILED_SETUP") is JobVerdict.failed


@given(
    st.sampled_from([*ENDED, "LOST"]),
    st.sampled_from(["UP", "INIT", "STOPPED", "GONE"]),
    st.sampled_from([None, "completed", "paused", "preempted"]),
    st.sampled_from([None, True, False]),
)
def test_done_needs_a_result_and_machines_that_are_there_are_not_replaced(
    job: str, cluster: str, status: str | None, user: bool | None
) -> None:
    found = end(job, cluster, status, user)
    assert (found is not JobVerdict.done) or status in ("completed", "paused")
    if cluster == "UP" and job != "LOST" and status != "preempted":
        assert not found.again


def test_reasons_are_said_once_with_their_places() -> None:
    text = "Failed to acquire resources in {} for {{m5.large}}: An error (InsufficientInstanceCapacity) occurred"
    found = reasons([text.format("us-east-1a"), text.format("us-east-1b"), "quota: VcpuLimitExceeded in us-west-2"])
    assert found == "us-east-1a, us-east-1b: InsufficientInstanceCapacity; us-west-2: VcpuLimitExceeded"


def test_a_reason_without_a_place_gets_that_of_its_attempt() -> None:
    lines = [
        "Launching on AWS us-west-2 (us-west-2a,us-west-2b).",
        "create_instances: ... (VcpuLimitExceeded) when ...",
        "Launching on AWS us-east-1 (us-east-1a).",
        "InsufficientInstanceCapacity ... (us-east-1a)",
        "Trying others.",
    ]
    assert reasons(telling(lines)) == "us-west-2: VcpuLimitExceeded; us-east-1a: InsufficientInstanceCapacity"


def test_a_server_of_another_version_is_named_with_both_and_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sky = pytest.importorskip("sky")

    class Older(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"status": "healthy", "api_version": "7", "version": "0.9.1"}')

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Older) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # SkyPilot keeps the address that it found first.
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr("sky.server.common.get_server_url", lambda: address)
        message = str(explained(sky.exceptions.APIVersionMismatchError("not compatible"), "mine"))
        server.shutdown()
    assert f"client is {sky.__version__}" in message and "API server 0.9.1" in message
    assert "`sky api stop && sky api start`" in message and "\n" not in message


def test_skypilots_mark_before_lines_is_found() -> None:
    for text, rank in (
        ("(train, pid=12) step 1/8", None),
        ("(head, rank=0, pid=12) step 1/8", "0"),
        ("(worker1, rank=1, pid=12, ip=10.0.0.2) step 1/8", "1"),
    ):
        found = PREFIX.match(text)
        assert found is not None and found["rank"] == rank and text[found.end() :] == "step 1/8"
    assert PREFIX.match("(two words) step") is None


# What it costs.


def test_lost_attempts_are_counted_and_unknown_prices_are_not_zero() -> None:
    lost = Attempt(machine="a", nodes=2, hourly_usd=3.6, ended="lost", phases={"provision_s": 60.0, "job_s": 40.0})
    done = Attempt(machine="a", nodes=2, hourly_usd=3.6, ended="done", phases={"provision_s": 50.0, "job_s": 150.0})
    cost = Cost([lost, done])
    found = cost.record()
    assert found["usd"] == pytest.approx(0.3) and found["phases"]["lost_s"] == 100.0
    assert found["phases"]["job_s"] == 150.0
    assert found["usd_by_phase"] == pytest.approx(
        {"provision_s": 0.05, "setup_s": 0, "job_s": 0.15, "idle_s": 0, "collect_s": 0, "down_s": 0, "lost_s": 0.1}
    )
    assert cost.line().startswith("$0.30: 5 min 00 s in 2 attempts on 2 x a")
    unknown = Cost([lost, Attempt(machine="b", nodes=1, hourly_usd=None, ended="done", phases={"job_s": 1.0})])
    assert unknown.record()["usd"] is None and unknown.line().startswith("n/a")
    nothing = Attempt(machine="b", nodes=1, hourly_usd=None, ended="no machine", phases={"provision_s": 9.0})
    assert Cost([nothing, done]).record()["usd"] == pytest.approx(0.2)


def test_the_report_reads_the_same_cost_from_the_attempts(tmp_path: Path) -> None:
    name = "2 x g5.xlarge (spot, AWS us-east-1), $1.20 an hour"
    lost = Attempt(machine=name, nodes=2, hourly_usd=3.6, ended="lost", phases={"provision_s": 60.0, "job_s": 40.0})
    nothing = Attempt(machine=name, nodes=2, hourly_usd=None, ended="no machine", phases={"provision_s": 9.0})
    done = Attempt(machine=name, nodes=2, hourly_usd=1.2, ended="done", phases={"job_s": 300.0})
    attempts = [lost, nothing, done]
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "cost.json").write_text(json.dumps(Cost(attempts).record()))
    cost = cost_of({"run_folder": str(tmp_path)})
    assert cost.usd == pytest.approx(Cost(attempts).record()["usd"]) and "3 attempts" in cost.line()


def test_a_clock_adds_up_phases() -> None:
    clock = Clock()
    clock.enter("job_s")
    time.sleep(0.02)
    clock.enter("down_s")
    clock.enter("")
    assert clock.seconds["job_s"] >= 0.02 and set(clock.seconds) == {"job_s", "down_s"}


# Waiting.


def test_waiting_is_ended_by_what_a_tick_raises_and_by_time() -> None:
    forever = threading.Event()
    with pytest.raises(Late):
        Pending(lambda: forever.wait(600), "x").wait(seconds=0.1)

    def tick() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Pending(lambda: forever.wait(600), "x").wait(tick)
    forever.set()
    assert Pending(lambda: 3, "x").wait() == 3
    with pytest.raises(ZeroDivisionError):
        Pending(lambda: 1 // 0, "x").wait()


def test_skypilots_copies_of_secrets_are_deleted(tmp_path: Path) -> None:
    tasks = tmp_path / "clients" / "1234" / "tasks"
    tasks.mkdir(parents=True)
    (tasks / "mine.yaml").write_text("secrets:\n  HF_TOKEN: hf_canary0123456789\n")
    (tasks / "other.yaml").write_text("run: true\n")
    (tasks.parent / "mine_translated.yaml").write_text("secrets: {HF_TOKEN: hf_canary0123456789}\n")
    with closing(sqlite3.connect(tmp_path / "requests.db")) as database:
        database.execute("CREATE TABLE requests (request_id TEXT, request_body TEXT, finished_at REAL)")
        bodies = [("a", '{"task": "HF_TOKEN: hf_canary0123456789"}', 1.0), ("b", '{"task": "run: true"}', 1.0)]
        database.executemany("INSERT INTO requests VALUES (?, ?, ?)", bodies)
        database.commit()
        assert forget({"hf_canary0123456789"}, tmp_path) == 3
        assert database.execute("SELECT request_id FROM requests").fetchall() == [("b",)]
    assert [path.name for path in tmp_path.rglob("*.yaml")] == ["other.yaml"]
    assert forget(set(), tmp_path) == 0


def test_scripts_and_records_with_secrets_are_deleted_once_the_machines_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, temporary = tmp_path / ".sky" / "api_server", tmp_path / "tmp"
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    secret = "hf_canary0123456789"
    held = [tmp_path / ".sky/generated/mine.yml", tmp_path / ".sky/tmp/mine-1.env", temporary / "sky_setup_x"]
    others = [tmp_path / ".sky/tmp/other.env", temporary / "sky_app_young", temporary / "mine.txt"]
    for file in (*held, *others):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"TOKEN={secret}")
    os.utime(held[2], (0, 0))
    assert forget({secret}, server) == 0, "machines that run need them"
    assert forget({secret}, server, ended="mine") == 3
    assert not [file for file in held if file.exists()] and all(file.exists() for file in others)


def test_why_a_setup_failed_is_told_although_skypilot_showed_nothing_of_it(tmp_path: Path) -> None:
    """The real script and a `uv` that fails: it ends with its code, and what it said lies where results are fetched."""
    home, programs = tmp_path / "home", tmp_path / "bin"
    (home / "sky_workdir" / "job").mkdir(parents=True)
    (home / "sky_workdir" / "requirements.txt").write_text("no-such-package==1")
    programs.mkdir()
    version = f"[ $1 != --version ] || {{ echo uv {scripts.UV} '(of today)'; exit; }}\n"
    (programs / "uv").write_text(f"#!/bin/sh\n{version}[ $1 = venv ] || {{ echo no version of $4 >&2; exit 7; }}\n")
    (programs / "uv").chmod(0o755)
    env = {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", "SKYPILOT_SETUP_NODE_RANK": "1"}
    done = subprocess.run(["bash", "-c", scripts.setup_script()], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7 and "no version of" in done.stdout

    job = JobDir(home / "sky_workdir" / "job")
    following = JobMonitor(None, job, None, Clock(), None, mirror=False)  # type: ignore[arg-type]
    assert following.setup_output() == [], "it may have gone well"
    following.ended = "FAILED_SETUP"
    assert following.setup_output() == done.stdout.splitlines()
    forget_last_attempt(job)
    following.show("(setup pid=3) resolving")
    assert following.setup_output() == ["resolving"]


def test_torchs_own_warnings_are_not_shown_but_kept(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    following = JobMonitor(None, JobDir(tmp_path), None, Clock(), None, mirror=False)  # type: ignore[arg-type]
    for text in ("[W1128 09:15:43.046744168 socket.cpp:207] [c10d] no name", "step 1/8", "W1128 09:15:43.04 1 torch"):
        following.show(f"(head, rank=0, pid=12) {text}")
    following.show("(worker1, rank=1, pid=12, ip=10.0.0.2) from another machine")
    following.show("(setup pid=3) resolving")
    assert capfd.readouterr().out == "step 1/8\n"
    assert len(following.tail) == 3 and list(following.setup) == ["resolving"]


def test_ctrl_c_lets_a_job_save_that_speaks_already_however_late_its_status_comes(tmp_path: Path) -> None:
    touched: list[str] = []
    following = object.__new__(JobMonitor)
    following.clock, following.tail, following.setup = Clock(), deque(), deque()
    following.stopping = SimpleNamespace(check=lambda: None, asked_by=signal.SIGINT)  # type: ignore[assignment]
    following.cluster = SimpleNamespace(touch=lambda name, tick: touched.append(name))  # type: ignore[assignment]
    following._told, following._muted, following._speaks = None, False, False
    following.clock.enter("setup_s")
    following.show("(setup pid=3) resolving")
    with pytest.raises(KeyboardInterrupt):
        following.tick()
    following.show("(train, pid=455) step 7/100")
    following.tick()
    assert following._told is not None
    following._told.wait(seconds=600)
    assert touched == [FLAG_FILE]


def test_a_disk_that_is_too_small_is_refused(job: JobDir, tmp_path: Path) -> None:
    place = tmp_path / "upload"
    upload.stage(job, place)
    with (place / "job" / "inputs" / "weights" / "model.safetensors").open("wb") as file:
        file.truncate(2_000_000_000)  # a hole: 2 GB of nothing
    inputs = place / "job" / "inputs"
    upload.check_disk_size(inputs, config(), None)
    upload.check_disk_size(inputs, config(), 100)
    with pytest.raises(UserError, match=r"compute\.disk_size=40: .* need about 51 GB"):
        upload.check_disk_size(inputs, config(), 40)
    upload.check_disk_size(inputs, config(checkpoint={"store": "s3://bucket/runs"}), 40)
    with (inputs / "huge.arrow").open("wb") as file:
        file.truncate(300 * 10**9)
    with pytest.raises(UserError, match=r"disk_size=256 \(SkyPilot's own size\): .* need about 351 GB"):
        upload.check_disk_size(inputs, config(), None)
