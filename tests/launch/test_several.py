"""Several machines on one: node 0 in this process, others through `join`; their workers are a few lines of script."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ComputeConfig, LaunchConfig, Preempted, RunConfig, UserError, WorkerError
from skytune.job import Job, JobDir
from skytune.launch import dismissal, several
from skytune.launch.machine import differs
from skytune.launch.nodes import Nodes

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "SKYTUNE_JOIN_TOKEN"

HEAD = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
JOB = Path(sys.argv[1])
(JOB / 'outputs' / 'logs').mkdir(parents=True, exist_ok=True)
def result(**values): (JOB / 'outputs' / 'result.json').write_text(json.dumps({'world_size': 2, **values}))
def fail(rank, message):
    error = {'type': 'UserError', 'message': message, 'user': True, 'traceback': '', 'time': time.time()}
    (JOB / 'outputs' / 'logs' / f'rank-{rank}.error.json').write_text(json.dumps(error))
    sys.exit(1)
"""

# Another machine: the real `join`, whose workers are a script instead of torchrun's agent.
OTHER = """
import sys
from skytune.launch import join, part
script, shared, words = sys.argv[1], sys.argv[2], sys.argv[3:]
part.agent = lambda job, *rest: [sys.executable, "-c", script, str(job.root)]
if shared == "no":
    join._is_here = lambda given: False
sys.exit(join.main(words))
"""


class Machine:
    """Another machine."""

    def __init__(self, home: Path, place: str, script: str, token: str, shared: bool, words: tuple[str, ...]) -> None:
        self.home, self.log = home, home.with_suffix(".log")
        env = {**os.environ, "SKYTUNE_HOME": str(home), TOKEN: token, "PYTHONPATH": str(ROOT / "src")}
        command = [
            sys.executable,
            "-c",
            OTHER,
            HEAD + textwrap.dedent(script),
            "yes" if shared else "no",
            place,
            *words,
        ]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def code(self, within: float = 60.0) -> int:
        return self.process.wait(within)


@pytest.fixture
def other(tmp_path: Path, port: int) -> Iterator[Callable[..., Machine]]:
    machines: list[Machine] = []

    def start(script: str = "pass", *words: str, token: str = "word-4711", shared: bool = True) -> Machine:
        home = tmp_path / f"machine-{len(machines)}"
        machines.append(Machine(home, f"127.0.0.1:{port}", script, token, shared, words))
        return machines[-1]

    yield start
    for machine in machines:
        machine.process.terminate()
        try:
            machine.process.wait(15)
        except subprocess.TimeoutExpired:
            machine.process.kill()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port for node 0; everybody knows the token."""
    monkeypatch.setenv(TOKEN, "word-4711")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    return JobDir(tmp_path / "job")


@pytest.fixture
def node_0(job: JobDir, port: int, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs node 0 with a script in place of its workers."""

    def run(script: str, count: int = 2, source: str = "", **settings: Any) -> None:
        values = {
            "threads": 1,
            "grace_seconds": 2.0,
            "nodes_timeout_seconds": 60.0,
            "silence_seconds": 20.0,
            **settings,
        }
        config = RunConfig(
            launch=LaunchConfig(nodes=None if "hosts" in values else count, num_processes=count, **values)
        )
        job.inputs.mkdir(parents=True, exist_ok=True)
        (job.inputs / "rows.txt").write_text("rows")
        job.write_job(Job(kind="train", run_key="my-run", config=config, labels=["a", "b"]))
        code = HEAD + textwrap.dedent(script)
        monkeypatch.setattr(several, "agent", lambda job, *rest: [sys.executable, "-c", code, str(job.root)])
        nodes = Nodes(count, 0, "127.0.0.1", port, source)
        several.NodesLauncher(nodes).run(job, ComputeConfig(device="cpu"))  # type: ignore[arg-type]

    return run


def test_two_machines_without_a_shared_folder(
    other: Callable[..., Machine],
    node_0: Callable[..., None],
    job: JobDir,
    capfd: pytest.CaptureFixture[str],
    port: int,
) -> None:
    second = other(
        """
        assert (JOB / 'inputs' / 'rows.txt').read_text() == 'rows'
        assert 'SKYTUNE_JOIN_TOKEN' not in os.environ
        assert os.environ['SKYTUNE_WORLD_SIZE'] == '2'
        (JOB / 'outputs' / 'logs' / 'rank-1.log').write_text('of rank 1')
        """,
        shared=False,
    )
    node_0("time.sleep(1); result(status='completed')")
    assert second.code() == 0, second.said
    assert second.said.splitlines()[-1] == "the run is done; node 0 has the results"
    assert f"inputs were copied to {second.home / 'joined' / 'my-run'}" in second.said
    assert (job.logs / "rank-1.log").read_text() == "of rank 1"
    assert (job.logs / "output-node-1.log").is_file()
    assert not (second.home / "joined" / "my-run").exists()
    said = capfd.readouterr().out
    assert f"  {TOKEN}=word-4711 python -m skytune.training join 127.0.0.1:{port}\n" in said
    assert "word-4711" not in (job.logs / "output.log").read_text()
    assert not (job.root / ".nodes").exists()


def test_a_failure_on_the_other_machine_ends_both(
    other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir
) -> None:
    """Case 26, with the workers of node 0 waiting for ever."""
    second = other("fail(1, 'data.label: no such column')", shared=False)
    begun = time.monotonic()
    with pytest.raises(UserError, match=r"^data.label: no such column$"):
        node_0("(JOB / 'pid').write_text(str(os.getpid())); time.sleep(600)")
    assert time.monotonic() - begun < 60
    assert second.code() == 1
    assert second.said.splitlines()[-1] == "error: the run failed: data.label: no such column; node 0 says more"
    _assert_gone(int((job.root / "pid").read_text()))


def test_a_failure_here_ends_the_other_machine(
    other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir
) -> None:
    second = other("(JOB / 'pid').write_text(str(os.getpid())); time.sleep(600)")
    with pytest.raises(UserError, match=r"^out of paper$"):
        node_0("time.sleep(1); fail(0, 'out of paper')")
    assert second.code() == 1
    assert second.said.splitlines()[-1] == "error: the run failed; node 0 says more"
    _assert_gone(int((job.root / "pid").read_text()))


def test_a_machine_that_dies_is_named(other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir) -> None:
    """The workers here would wait for its processes for ever."""
    second = other("(JOB / 'pid').write_text(str(os.getppid())); time.sleep(600)")
    with pytest.raises(WorkerError) as caught:
        node_0(
            "while not (JOB / 'pid').exists(): time.sleep(0.05)\n"
            "os.kill(int((JOB / 'pid').read_text()), signal.SIGKILL); time.sleep(600)"
        )
    assert re.match(rf"node 1 \({socket.gethostname()} at 127.0.0.1\) is gone \(", str(caught.value))
    assert str(caught.value).endswith("the same command goes on from the last checkpoint, if there is one")
    assert "\n" not in str(caught.value)
    assert second.code() == -signal.SIGKILL


def test_node_0_that_dies_ends_the_others(other: Callable[..., Machine], port: int, tmp_path: Path) -> None:
    """A node 0 that speaks and then falls silent: as behind a cable that was cut."""
    from skytune.launch.channel import Channel

    job = JobDir(tmp_path / "job")
    config = RunConfig(launch=LaunchConfig(silence_seconds=2.0, grace_seconds=1.0))
    job.write_job(Job(kind="train", run_key="my-run", config=config, labels=["a"]))
    (job.root / ".nodes").write_text("here")
    with socket.create_server(("127.0.0.1", port)) as door:
        second = other("(JOB / 'pid').write_text(str(os.getpid())); time.sleep(600)")
        channel = Channel(door.accept()[0], 30.0)
        channel.challenge("word-4711")
        assert channel.expect("hello")["python"] == ".".join(map(str, sys.version_info[:2]))
        channel.send("welcome", rank=1, nodes=2, each=1, run_key="my-run", folder=str(job.root), nonce="here")
        assert channel.expect("found")["shared"] is True
        channel.expect("ready")
        channel.send("go", address="127.0.0.1", port=1)
        assert second.code(60) == 1
    assert second.said.splitlines()[-1] == (
        f"error: node 0 (127.0.0.1:{port}) has not been heard of: this machine's workers were ended"
    )
    _assert_gone(int((job.root / "pid").read_text()))


def test_a_machine_that_is_told_to_end_has_all_save(
    other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir
) -> None:
    second = other(
        "os.kill(os.getppid(), signal.SIGTERM)\nwhile not (JOB / 'outputs' / 'result.json').exists(): time.sleep(0.05)"
    )
    with pytest.raises(Preempted, match="stopped after step 3, which is saved"):
        node_0("while not (JOB / 'preempt').exists(): time.sleep(0.05)\nresult(status='preempted', steps=3)")
    assert second.code() == 75, second.said
    assert "is saved; the same commands go on" in second.said


def test_who_is_missing_is_said_after_the_wait(other: Callable[..., Machine], node_0: Callable[..., None]) -> None:
    there = other("pass", "--node-rank", "2")
    with pytest.raises(UserError) as caught:
        node_0("pass", count=3, nodes_timeout_seconds=8.0)
    host = socket.gethostname()
    assert str(caught.value) == (
        "launch.nodes=3: node 1 did not come within 8 s (launch.nodes_timeout_seconds); "
        f"here: node 0 ({host}), node 2 ({host} at 127.0.0.1)"
    )
    assert there.code() == 1
    assert there.said.splitlines()[-1] == "error: the run ended before training began: node 0 says why"


def test_a_machine_that_is_another_is_turned_away(
    other: Callable[..., Machine], node_0: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started by hand, it may be put right and come again; one with a number was started by something."""
    ours = several.about()
    monkeypatch.setattr(several, "about", lambda: {**ours, "versions": {**ours["versions"], "torch": "1.0"}})
    stranger, why = other(), f"has torch {ours['versions']['torch']}, node 0 has 1.0"
    with pytest.raises(UserError, match=r"node 1 did not come within 8 s.*turned away: .*" + re.escape(why)):
        node_0("pass", nodes_timeout_seconds=8.0)
    assert stranger.code() == 1
    assert stranger.said.splitlines()[-1] == f"error: this machine {why}"

    numbered = other("pass", "--node-rank", "1")
    with pytest.raises(UserError, match=r"^launch.nodes=2: .* at 127.0.0.1 " + re.escape(why) + "$"):
        node_0("pass")
    assert numbered.code() == 1


def test_another_token_and_noise_at_the_door(
    other: Callable[..., Machine], node_0: Callable[..., None], port: int, job: JobDir
) -> None:
    stranger = other(token="guessed")
    noise: list[socket.socket] = []

    def knock() -> None:
        for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 64):
            noise.append(socket.create_connection(("127.0.0.1", port)))
            noise[-1].sendall(data)
        assert stranger.code() == 1
        other()

    def begin() -> None:
        until = time.monotonic() + 30
        while not (job.root / ".nodes").exists() and time.monotonic() < until:
            time.sleep(0.05)
        knock()

    thread = threading.Thread(target=begin)
    thread.start()
    node_0("time.sleep(0.5); result(status='completed')")
    thread.join(30)
    for connection in noise:
        connection.close()
    assert "SKYTUNE_JOIN_TOKEN is not" in stranger.said.splitlines()[-1]


def test_a_run_without_training_lets_the_others_go(
    other: Callable[..., Machine], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cached one, for example."""
    monkeypatch.setattr(dismissal, "gathered", threading.Event())
    waiting = other()
    dismissal.dismiss(Nodes(2, 0, "127.0.0.1", port, "Slurm"))
    assert waiting.code(20) == 0
    assert waiting.said.splitlines()[-1].startswith("node 0 had nothing to train")
    begun = time.monotonic()
    dismissal.dismiss(Nodes(1))
    monkeypatch.delenv(TOKEN)
    dismissal.dismiss(Nodes(2))
    assert time.monotonic() - begun < dismissal.DISMISS_SECONDS / 2


def test_a_port_that_is_taken(node_0: Callable[..., None], port: int) -> None:
    with (
        socket.create_server(("", port)),
        pytest.raises(UserError, match=rf"^launch.master_port={port}: .*give another"),
    ):
        node_0("pass")


def test_a_cluster_that_shares_no_secret(node_0: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN)
    with pytest.raises(UserError, match=r"^Slurm has started 2 machines: .*export SKYTUNE_JOIN_TOKEN="):
        node_0("pass", source="Slurm")


def test_processes_that_cannot_be_shared_out(node_0: Callable[..., None]) -> None:
    config = LaunchConfig(num_processes=5, nodes=2)
    with pytest.raises(UserError, match=r"^launch.num_processes=5: cannot be shared out evenly among 2 machines$"):
        several.processes_each(ComputeConfig(), config, 2)


OURS = {"python": "3.11", "versions": {"torch": "2.13.0+cu126", "numpy": "2.3"}, "code": "c", "gpus": 4}


@pytest.mark.parametrize(
    ("change", "device", "chosen", "why"),
    [
        ({}, "cuda", False, ""),
        ({"versions": {"torch": "2.13.0", "numpy": "2.3"}}, "cuda", False, ""),
        ({"python": "3.12"}, "cpu", True, "has Python 3.12, node 0 has 3.11"),
        ({"versions": {"torch": "2.12.0", "numpy": "2.3"}}, "cpu", True, "has torch 2.12.0, node 0 has 2.13.0+cu126"),
        ({"versions": {"torch": "2.13.0"}}, "cpu", True, "has numpy none, node 0 has 2.3"),
        ({"code": "d"}, "cpu", True, "has another version of skytune's code than node 0"),
        ({"gpus": 1}, "cuda", True, "has 1 GPUs, each machine needs 2"),
        ({"gpus": 2}, "cuda", True, ""),
        ({"gpus": 2}, "cuda", False, "has 2 GPUs, node 0 has 4"),
        ({"gpus": 2}, "cpu", False, "has 2 GPUs, node 0 has none"),
        ({"gpus": 2}, "cpu", True, ""),
    ],
)
def test_machines_that_are_not_alike(change: dict[str, Any], device: str, chosen: bool, why: str) -> None:
    said = differs({**OURS, **change}, OURS, device=device, chosen=chosen, each=2)
    assert said.startswith(why) and bool(said) == bool(why)


FAKE_SSH = """#!{python}
# A stand-in for OpenSSH's client at the edge: no network, the command runs here, with this connection's stdin.
import json, os, subprocess, sys
at = sys.argv.index("--")
host, command = sys.argv[at + 1], sys.argv[at + 2]
with open({calls!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + chr(10))
if host == "nowhere":
    sys.exit("ssh: Could not resolve hostname nowhere: Name or service not known")
sys.exit(subprocess.run(["sh", "-c", command.replace("skytune.training join", {module!r} + " join")]).returncode)
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake `ssh`, first on the path; returns the file of its calls. Workers are a script there, too."""
    folder, calls = tmp_path / "bin", tmp_path / "calls.jsonl"
    folder.mkdir()
    (tmp_path / "joining.py").write_text(
        "import sys\nfrom skytune.launch import join, part\n"
        "part.agent = lambda job, *rest: [sys.executable, '-c', 'import os, sys; sys.exit(0 if os.environ.get('\n"
        "    + repr('SKYTUNE_SECRETS') + ') else 5)', str(job.root)]\n"
        "sys.exit(join.main(sys.argv[2:]))\n"
    )
    (folder / "ssh").write_text(FAKE_SSH.format(python=sys.executable, calls=str(calls), module="joining"))
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return calls


def test_hosts_are_started_over_ssh(
    node_0: Callable[..., None], ssh: Path, job: JobDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKYTUNE_SECRETS", '{"extra.canary_token": "canary"}')
    node_0("time.sleep(1); result(status='completed', world_size=3)", count=3, hosts=["b", "me@c"])
    calls = [json.loads(line) for line in ssh.read_text().splitlines()]
    assert sorted(call[call.index("--") + 1] for call in calls) == ["b", "me@c"]
    assert all("BatchMode=yes" in call for call in calls)
    assert "word-4711" not in ssh.read_text() and "canary" not in ssh.read_text(), "neither stands on a command line"
    for number in (1, 2):
        record = (job.logs / f"node-{number}.log").read_text()
        assert record.splitlines()[-1] == "the run is done; node 0 has the results", record


def test_a_host_that_cannot_be_reached_is_named_at_once(node_0: Callable[..., None], ssh: Path, job: JobDir) -> None:
    with pytest.raises(UserError) as caught:
        node_0("pass", hosts=["nowhere"])
    said = "ssh: Could not resolve hostname nowhere: Name or service not known"
    assert str(caught.value).startswith(f"launch.hosts: nowhere (node 1) did not join: {said} (more in ")


def _assert_gone(pid: int, within: float = 5.0) -> None:
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")
