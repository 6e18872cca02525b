"""Several machines on one: node 0 in this process, the others in processes of their own, with a share between them;
their workers are a few lines of script."""

import contextlib
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

from skytune.config import ComputeConfig, LaunchConfig, Preempted, RunConfig, UserError, WorkerError, from_dict
from skytune.job import Job, JobDir
from skytune.launch.compatibility import differs, lacks
from skytune.launch.multinode import launcher as several
from skytune.launch.multinode.presence import LARGEST, Presence
from skytune.launch.multinode.share import Share
from skytune.launch.multinode.topology import Nodes

ROOT = Path(__file__).resolve().parents[3]
HOST = re.escape(socket.gethostname())
KEY = "my-run-0123456789ab"

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
def wait(path):
    while not Path(path).exists(): time.sleep(0.05)
"""

# Another machine, as src/run.py has it; its workers are a script instead of torchrun's agent.
OTHER = """
import json, signal, sys
from skytune.config import Preempted, RunConfig, UserError
from skytune.launch.multinode import node as worker_node
from skytune.launch.multinode.topology import Nodes
script, launch = sys.argv[1], json.loads(sys.argv[2])
def told(*_): raise KeyboardInterrupt
signal.signal(signal.SIGTERM, told)
worker_node.agent = lambda job, *rest: [sys.executable, "-c", script, str(job.root)]
config = RunConfig.parse({'launch': launch})
import logging
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
try:
    code = worker_node.serve(config, Nodes(launch["nodes"], launch["node_rank"], "127.0.0.1", launch["master_port"]))
except KeyboardInterrupt:
    code = 75
except Preempted as error:
    print(f"preempted: {error}", flush=True)
    code = 75
except UserError as error:
    print(f"error: {error}", flush=True)
    code = 1
sys.exit(code)
"""


class Machine:
    """Another machine."""

    def __init__(self, home: Path, log: Path, script: str, launch: dict[str, Any]) -> None:
        self.home, self.log = home, log
        env = {**os.environ, "SKYTUNE_HOME": str(home), "PYTHONPATH": str(ROOT / "src")}
        words = [sys.executable, "-c", OTHER, HEAD + textwrap.dedent(script), json.dumps(launch)]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                words, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def code(self, within: float = 600.0) -> int:
        return self.process.wait(within)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Of all machines."""
    monkeypatch.setenv("SKYTUNE_HOME", str(tmp_path / "share"))  # which the share becomes
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        "share": str(tmp_path / "share"),
        "nodes": 2,
        "master_port": port,
        "threads": 1,
        "timeouts": {"kill": 2.0, "start": 600.0, "heartbeat": 5.0},
    }


@pytest.fixture
def job(tmp_path: Path) -> JobDir:
    return JobDir(tmp_path / "share" / "runs" / KEY)


@pytest.fixture
def other(tmp_path: Path, settings: dict[str, Any]) -> Iterator[Callable[..., Machine]]:
    machines: list[Machine] = []

    def start(script: str = "pass", rank: int = 1, **changed: Any) -> Machine:
        home = tmp_path / f"machine-{rank}"
        launch = {**settings, "node_rank": rank, **changed}
        machines.append(Machine(home, tmp_path / f"machine-{len(machines)}.log", script, launch))
        return machines[-1]

    yield start
    for machine in machines:
        machine.process.kill()
        machine.process.wait()


@pytest.fixture
def node_0(job: JobDir, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs node 0 with a script in place of its workers."""

    def run(script: str, config: RunConfig | None = None, **changed: Any) -> None:
        launch = from_dict(LaunchConfig, {**settings, "num_processes": settings["nodes"] or 2, **changed})
        config = config or RunConfig()
        config.launch = launch
        count = launch.nodes or 1 + len(launch.hosts)
        job.inputs.mkdir(parents=True, exist_ok=True)
        (job.inputs / "rows.txt").write_text("rows")
        job.write_job(Job(kind="train", run_key=KEY, config=config, labels=["a", "b"]))
        code = HEAD + textwrap.dedent(script)
        monkeypatch.setattr(several, "agent", lambda job, *rest: [sys.executable, "-c", code, str(job.root)])
        nodes = Nodes(count, 0, "127.0.0.1", launch.master_port)
        several.NodesLauncher(nodes).run(job, ComputeConfig(device="cpu"))  # type: ignore[arg-type]

    return run


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of an empty bucket of moto's S3."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    import boto3

    boto3.resource("s3").create_bucket(Bucket="share")
    yield "s3://share"
    running.stop()


DONE = "wait(JOB / 'outputs' / 'logs' / 'there')\nresult(status='completed')"


@pytest.mark.parametrize("kind", ["folder", "bucket"])
def test_two_machines(
    kind: str,
    other: Callable[..., Machine],
    node_0: Callable[..., None],
    job: JobDir,
    request: Any,
    settings: Any,
    tmp_path: Path,
) -> None:
    if kind == "bucket":
        settings["share"] = request.getfixturevalue("bucket") + "/apart"
    there = tmp_path / "there"
    second = other(
        f"""
        assert (JOB / 'inputs' / 'rows.txt').read_text() == 'rows'
        assert os.environ['SKYTUNE_WORLD_SIZE'] == '2'
        (JOB / 'outputs' / 'logs' / 'rank-1.log').write_text('of rank 1')
        print('out of node 1', flush=True)
        Path({str(there)!r}).touch()
        """
    )
    node_0(f"wait({str(there)!r})\nresult(status='completed')")
    assert second.code() == 0, second.output
    assert second.output.splitlines()[-1] == "the run is done; node 0 has the results"
    assert (job.logs / "rank-1.log").read_text() == "of rank 1"
    assert "out of node 1" in (job.logs / "output-node-1.log").read_text()
    assert not list((second.home / "joined").glob("*")), "the copy goes again"
    if kind == "folder":
        assert not list(Path(settings["share"], ".nodes").glob("*/*")), "nothing is left in the share"


def test_a_failure_there_is_the_error_here(
    other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir
) -> None:
    second = other("fail(1, 'the column hello: no such column')")
    with pytest.raises(UserError, match=r"^the column hello: no such column$"):
        node_0("(JOB / 'pid').write_text(str(os.getpid())); time.sleep(600)")
    assert second.code() == 1
    assert second.output.splitlines()[-1] == f"error: the run failed: node 0 ({socket.gethostname()}) says why"
    _assert_gone(int((job.root / "pid").read_text()))


def test_a_failure_here_ends_the_other_machine(
    other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir
) -> None:
    second = other("(JOB / 'pid').write_text(str(os.getpid())); time.sleep(600)")
    with pytest.raises(UserError, match=r"^out of paper$"):
        node_0("wait(JOB / 'pid'); fail(0, 'out of paper')")
    assert second.code() == 1
    _assert_gone(int((job.root / "pid").read_text()))


def test_a_machine_that_dies_is_named(
    other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir, settings: Any
) -> None:
    """With all its processes; the workers here would wait for its own for ever."""
    settings["timeouts"]["heartbeat"] = 4.0
    second = other("(JOB / 'pid').write_text(f'{os.getpid()} {os.getppid()}'); time.sleep(600)")
    with pytest.raises(WorkerError) as caught:
        node_0(
            "wait(JOB / 'pid'); time.sleep(1)\n"
            "[os.kill(int(pid), signal.SIGKILL) for pid in (JOB / 'pid').read_text().split()]; sys.exit(1)"
        )
    assert re.fullmatch(
        rf"node 1 \({HOST}\) has not been heard of for 4 s \(launch.timeouts.heartbeat\); "
        "the same command goes on from the last checkpoint, if there is one",
        str(caught.value),
    )
    assert second.code() == -signal.SIGKILL


NODE_0 = """
import sys
sys.path.insert(0, {tests!r})
import machines_apart as apart
from pathlib import Path
from skytune.launch.multinode import launcher as several
several.agent = lambda job, *rest: [sys.executable, "-c", {script!r}, str(job.root)]
sys.exit(apart.main(Path(sys.argv[1])))
"""


def test_node_0_that_dies_ends_the_others(
    other: Callable[..., Machine], job: JobDir, settings: Any, tmp_path: Path
) -> None:
    settings["timeouts"]["heartbeat"] = 4.0
    config = RunConfig(launch=from_dict(LaunchConfig, {**settings, "num_processes": 2, "master_addr": "127.0.0.1"}))
    config.compute.device = ComputeConfig(device="cpu").device  # type: ignore[arg-type]
    job.write_job(Job(kind="train", run_key=KEY, config=config, labels=["a", "b"]))
    script = HEAD + "(JOB / 'pid-0').write_text(str(os.getpid())); time.sleep(600)"
    code = NODE_0.format(tests=str(ROOT / "tests" / "helpers"), script=script)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SKYTUNE_HOME": str(tmp_path / "first")}
    first = subprocess.Popen([sys.executable, "-c", code, str(job.root)], env=env, stdin=subprocess.DEVNULL)
    try:
        second = other("(JOB / 'pid').write_text(str(os.getpid())); time.sleep(600)")
        _until(lambda: (job.root / "pid").exists() and (job.root / "pid-0").exists(), second)
    finally:
        first.kill()
        first.wait()
        os.kill(int((job.root / "pid-0").read_text()), signal.SIGKILL)
    assert second.code() == 1
    assert re.fullmatch(
        rf"error: node 0 \({HOST}\) has not been heard of for 4 s \(launch.timeouts.heartbeat\): "
        "this machine's workers were ended",
        second.output.splitlines()[-1],
    )
    _assert_gone(int((job.root / "pid").read_text()))


@pytest.mark.parametrize("who", [0, 1])
def test_a_machine_that_is_told_to_end_has_all_save(
    who: int, other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir
) -> None:
    told = ["", ""]
    told[who] = "os.kill(os.getppid(), signal.SIGTERM)\n"
    second = other(f"{told[1]}(JOB / 'there').touch()\nwait(JOB / 'outputs' / 'result.json')")
    with pytest.raises(Preempted, match="stopped after step 3, which is saved"):
        node_0(f"wait(JOB / 'there')\n{told[0]}wait(JOB / 'preempt')\nresult(status='preempted', steps=3)")
    assert second.code() == 75, second.output
    assert second.output.splitlines()[-1].startswith("the run ended with exit code 75: node 0 (")


def test_who_is_missing_is_said_after_the_wait(
    other: Callable[..., Machine], node_0: Callable[..., None], settings: Any
) -> None:
    settings["nodes"] = 3
    there = other("time.sleep(600)", rank=2)
    _until(lambda: "waiting for node 0" in there.output, there)
    share, host = settings["share"], socket.gethostname()
    with pytest.raises(UserError) as caught:
        node_0("time.sleep(600)", timeouts={"kill": 2.0, "start": 8.0, "heartbeat": 5.0})
    assert str(caught.value).startswith(
        f"node 1 did not come within 8 s (launch.timeouts.start; here: node 2 ({host})); all machines must see "
        f"launch.share={share}; "
    )
    assert there.code() == 1
    assert there.output.splitlines()[-1] == f"error: the run failed: node 0 ({host}) says why"


def test_a_node_0_that_never_comes(other: Callable[..., Machine], settings: Any) -> None:
    alone = other(timeouts={"kill": 2.0, "start": 1.0, "heartbeat": 5.0})
    assert alone.code() == 1
    assert alone.output.splitlines()[-1] == (
        "error: launch.nodes=2: node 0 did not come within 1 s (launch.timeouts.start); all machines must see "
        f"launch.share={settings['share']}"
    )


def test_unlike_versions_are_refused_with_both_named(
    other: Callable[..., Machine], node_0: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = several.about()
    torch = ours["versions"]["torch"]
    monkeypatch.setattr(several, "about", lambda: {**ours, "versions": {**ours["versions"], "torch": "1.0"}})
    stranger = other()
    message = rf"^launch.nodes=2: node 1 \({HOST}\) has torch {re.escape(torch)}, node 0 has 1.0, which is {HOST}$"
    with pytest.raises(UserError, match=message):
        node_0("time.sleep(600)")
    assert stranger.code() == 1
    assert re.fullmatch(
        rf"error: launch.nodes=2: this machine has torch {re.escape(torch)}, node 0 has 1.0, "
        rf"which is node 0 \({HOST}\)",
        stranger.output.splitlines()[-1],
    )


def test_what_an_earlier_attempt_left_is_not_taken(
    other: Callable[..., Machine], node_0: Callable[..., None], settings: Any
) -> None:
    """A node 0 that was killed left its word, and so did the other machine."""
    share = Share(
        RunConfig(launch=from_dict(LaunchConfig, settings)), Nodes(2, 0, "127.0.0.1", settings["master_port"])
    )
    work = {"mark": "m", "run_key": KEY, "each": 1, "address": "127.0.0.1", "port": 1}
    share.write(0, json.dumps({"attempt": "a", "beat": 7, "job": work, "exit": 0}).encode())
    share.write(1, json.dumps({"attempt": "b", "beat": 9, "leader": "a", "mark": "m", "left": 1}).encode())
    second = other("(JOB / 'outputs' / 'logs' / 'there').touch()")
    _until(lambda: "waiting for node 0" in second.output, second)
    node_0(DONE)
    assert second.code() == 0, second.output


def test_another_command_gets_nothing_imported(
    other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir
) -> None:
    config = RunConfig()
    config.callbacks = {"x": {"_target_": "os.system", "command": "true"}}
    second = other("(JOB / 'ran').touch()")
    with pytest.raises(UserError, match=rf"^node 1 \({HOST}\) has ended; its output says why"):
        node_0("time.sleep(600)", config)
    assert second.code() == 1
    assert "node 0's job wants callbacks.x._target_, which this machine's command does not say" in second.output
    assert not (job.root / "ran").exists()


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    "change",
    [{"run_key": key} for key in ("..", "../x", "/abs", "a/../../b", "a/b", ".", "", None, "n\0l", "l" * 300)]
    + [{"each": each} for each in (0, -1, "2", None, 10**9)]
    + [{"port": port} for port in (0, "1", None, 65536)]
    + [{"address": None}],
    ids=str,
)
def test_a_word_that_makes_no_sense_deletes_nothing(
    change: dict[str, Any], private: bool, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, `run_key: ".."` emptied SKYTUNE_HOME."""
    from skytune.launch.multinode import node as worker_node

    share = Path(settings["share"])
    for name in ("runs/precious", "joined/precious"):
        (share / name).mkdir(parents=True)
    launch = from_dict(LaunchConfig, settings)
    node = worker_node.WorkerNode(Share(RunConfig(launch=launch), Nodes(2, 1, "a")), Nodes(2, 1), launch, None)
    node.mailbox.private = private
    word = {"mark": "m", "run_key": KEY, "each": 1, "address": "a", "port": 1, **change}
    monkeypatch.setattr(node, "_job", lambda mark=None: word)
    with pytest.raises(UserError, match="node 0's word"):
        node._take_part("m")
    node.presence.end()
    assert (share / "runs" / "precious").is_dir() and (share / "joined" / "precious").is_dir()


def test_noise_in_the_share_is_no_word(settings: Any) -> None:
    share = Share(RunConfig(launch=from_dict(LaunchConfig, settings)), Nodes(6, 0, "a"))
    presence = Presence(share, 0, [1, 2, 3, 4, 5], 10.0, {})
    good = {"attempt": "x", "beat": 1, "host": "h"}
    noise = [b"", b"[" * 100_000, b"[1]", b"\xff\xfe", b"1" * (LARGEST + 1)]
    for round in range(2):
        for rank, data in enumerate(noise, start=1):
            share.write(rank, data)
            presence._poll(rank)
            assert presence.of(rank) == {} and presence.lost(rank) == ""
        share.write(1, json.dumps({**good, "beat": round}).encode())
        presence._poll(1)
    assert presence.of(1)["host"] == "h", "seen to change"
    presence.end()


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/proc/mounts").exists(), reason="mounts a file system")
@pytest.mark.parametrize("why", ["read-only", "full"])
def test_a_share_that_fails_ends_both_sides_with_a_line(
    why: str, other: Callable[..., Machine], node_0: Callable[..., None], job: JobDir, settings: Any
) -> None:
    settings["timeouts"]["heartbeat"] = 4.0
    share, over = Path(settings["share"]), threading.Event()
    share.mkdir()

    def fill() -> None:
        with open(share / "large", "wb", buffering=0) as file:
            while not over.wait(0.02):  # again and again: a word that is replaced leaves room for one
                with contextlib.suppress(OSError):
                    while file.write(b"0" * 4096):
                        pass

    def protect() -> None:
        (meeting,) = (share / ".nodes").iterdir()  # a whole file system cannot be, while somebody has a file open
        subprocess.run(["chattr", "+i", str(meeting)], check=True)

    def break_it() -> None:
        _until((job.root / "pid").exists, second)
        (fill if why == "full" else protect)()

    if why == "full":
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(share)], capture_output=True)
        words = ["umount", "-l", str(share)]
    else:
        done = subprocess.run(["chattr", "+i", str(share)], capture_output=True)
        subprocess.run(["chattr", "-i", str(share)], capture_output=True)
        words = ["chattr", "-R", "-i", str(share)]
    if done.returncode:
        pytest.skip(f"not here: {done.stderr.decode()}")
    reason = "Operation not permitted" if why == "read-only" else "No space left on device"
    thread = threading.Thread(target=break_it, daemon=True)
    try:
        second = other("(JOB / 'pid').write_text(str(os.getpid())); time.sleep(600)")
        thread.start()
        with pytest.raises(UserError, match=rf"^launch.share={share}: cannot be used any more: {reason}$"):
            node_0("wait(JOB / 'pid'); time.sleep(600)")
        assert second.code() == 1
        assert second.output.splitlines()[-1] == f"error: launch.share={share}: cannot be used any more: {reason}"
        pid = int((job.root / "pid").read_text())
    finally:
        over.set()
        subprocess.run(words, check=False)
    _assert_gone(pid)


def test_a_share_that_cannot_be_written_is_said_at_once(
    node_0: Callable[..., None], settings: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    settings["share"] = str(tmp_path / "file")
    with pytest.raises(UserError, match=rf"^launch.share={tmp_path}/file: cannot be written: "):
        node_0("pass")


@pytest.mark.parametrize("code", [0, 1, 76])
def test_a_run_without_training_ends_the_others_by_its_code(
    code: int, other: Callable[..., Machine], settings: Any
) -> None:
    """A cached one, or one that failed before."""
    waiting = other()
    nodes = Nodes(2, 0, "127.0.0.1", settings["master_port"])
    several.Lead.begin(RunConfig(launch=from_dict(LaunchConfig, settings)), nodes)
    lead = several.Lead.current
    assert lead is not None
    _until(lambda: bool(lead.word(1)), waiting)
    lead.end(code)
    assert waiting.code() == code
    assert several.Lead.current is None
    several.Lead.begin(RunConfig(), Nodes(1))
    assert several.Lead.current is None


def test_a_port_that_is_taken(other: Callable[..., Machine], node_0: Callable[..., None], settings: Any) -> None:
    second, port = other(), settings["master_port"]
    with (
        socket.create_server(("", port)),
        pytest.raises(UserError, match=rf"^launch.master_port={port}: .*give another"),
    ):
        node_0("pass")
    assert second.code() == 1


def test_processes_that_cannot_be_shared_out() -> None:
    config = LaunchConfig(num_processes=5, nodes=2)
    with pytest.raises(UserError, match=r"^launch.num_processes=5: cannot be shared out evenly among 2 machines$"):
        several.processes_each(ComputeConfig(), config, 2)


OURS = {"python": "3.11", "versions": {"torch": "2.13.0+cu126", "numpy": "2.3"}, "code": "c", "gpus": 4}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"versions": {"torch": "2.13.0", "numpy": "2.3"}}, ""),
        ({"python": "3.12"}, "has Python 3.12, node 0 has 3.11"),
        ({"versions": {"torch": "2.12.0", "numpy": "2.3"}}, "has torch 2.12.0, node 0 has 2.13.0+cu126"),
        ({"versions": {"torch": "2.13.0"}}, "has numpy none, node 0 has 2.3"),
        ({"versions": ["torch"]}, "has torch none, node 0 has 2.13.0+cu126"),
        ({"code": "d"}, "has another version of skytune's code than node 0"),
    ],
)
def test_machines_that_are_not_alike(change: dict[str, Any], why: str) -> None:
    assert differs({**OURS, **change}, OURS) == why


@pytest.mark.parametrize(
    ("gpus", "device", "chosen", "why"),
    [
        (4, "cuda", False, ""),
        (1, "cuda", True, "has 1 GPUs, each machine needs 2"),
        ("x", "cuda", True, "has 0 GPUs, each machine needs 2"),
        (2, "cuda", True, ""),
        (2, "cuda", False, "has 2 GPUs, node 0 has 4"),
        (2, "cpu", False, "has 2 GPUs, node 0 has none"),
        (2, "cpu", True, ""),
    ],
)
def test_gpus_that_are_not_alike(gpus: Any, device: str, chosen: bool, why: str) -> None:
    lack = lacks({**OURS, "gpus": gpus}, OURS, device=device, chosen=chosen, each=2)
    assert lack.startswith(why) and bool(lack) == bool(why)


FAKE_SSH = """#!{python}
# A stand-in for OpenSSH's client at the edge: no network, the command runs here, with this connection's pipes.
import json, os, subprocess, sys
words = sys.argv[1:]
with open({calls!r}, "a") as file:
    file.write(json.dumps(words) + chr(10))
while words[0].startswith("-"):
    words = words[2:] if words[0] in ("-o", "-l") else words[1:]
host, command = words[0].rpartition("@")[2], " ".join(words[1:])
if host == "nowhere":
    sys.exit("ssh: Could not resolve hostname nowhere: Name or service not known")
os.environ |= {{"HOME": {home!r} + host, "CANARY_TOKEN": ""}}
os.makedirs(os.environ["HOME"], exist_ok=True)
os.chdir(os.environ["HOME"])
command = command.replace("skytune.launch.multinode.node", {module!r})
sys.exit(subprocess.run(["sh", "-c", command]).returncode)
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Path:
    """A fake `ssh`, first on the path, and rsync itself; returns the file of the calls. Workers are a script."""
    folder, calls = tmp_path / "bin", tmp_path / "calls.jsonl"
    folder.mkdir()
    (tmp_path / "work.py").write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "job, rank = Path(sys.argv[1]), sys.argv[2]\n"
        "assert (job / 'inputs' / 'rows.txt').read_text() == 'rows'\n"
        "print('{not json}', flush=True)\n"
        "(job / 'outputs' / 'logs' / f'rank-{rank}.log').write_text('a log')\n"
        "(Path(__file__).parent / f'there-{rank}').touch()\n"
        "sys.exit(0 if os.environ.get('CANARY_TOKEN') else 5)\n"
    )
    (tmp_path / "as_a_host.py").write_text(
        "import sys\n"
        "from skytune.launch.multinode import node as worker_node\n"
        f"work = {str(tmp_path / 'work.py')!r}\n"
        "worker_node.agent = lambda job, nodes, *_: [sys.executable, work, str(job.root), str(nodes.rank)]\n"
        "sys.exit(worker_node.main())\n"
    )
    text = FAKE_SSH.format(python=sys.executable, calls=str(calls), module="as_a_host", home=f"{tmp_path}/host-")
    (folder / "ssh").write_text(text)
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("SKYTUNE_HOME")
    settings["nodes"] = None
    return calls


def test_hosts_are_started_over_ssh(
    node_0: Callable[..., None], ssh: Path, job: JobDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CANARY_TOKEN", "canary-0123456789")
    script = "".join(f"wait({str(tmp_path / f'there-{rank}')!r})\n" for rank in (1, 2))
    node_0(f"{script}result(status='completed', world_size=3)", num_processes=3, hosts=["b", "me@c"])
    calls = [json.loads(line) for line in ssh.read_text().splitlines()]
    assert {host for call in calls for host in call} >= {"b", "me@c"}
    assert all("BatchMode=yes" in call for call in calls)
    assert "canary-" not in ssh.read_text(), "it does not stand on a command line"
    for number in (1, 2):
        record = (job.logs / f"node-{number}.log").read_text()
        assert record.splitlines()[-1] == "the run is done; node 0 has the results", record
        assert (job.logs / f"rank-{number}.log").read_text() == "a log"
        assert "{not json}" in (job.logs / f"output-node-{number}.log").read_text()
    assert not list(tmp_path.glob("host-*/.cache/skytune/joined/*")), "the copies go again"


def test_a_host_that_cannot_be_reached_is_named_at_once(node_0: Callable[..., None], ssh: Path, job: JobDir) -> None:
    with pytest.raises(UserError) as caught:
        node_0("time.sleep(600)", hosts=["nowhere"])
    assert str(caught.value) == (
        "launch.hosts: rsync with nowhere:.cache/skytune/joined/my-run-0123456789ab/: ssh: Could not resolve hostname "
        "nowhere: Name or service not known"
    )


def _until(true: Callable[[], bool], machine: Machine, seconds: float = 600.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert machine.process.poll() is None, machine.output
        assert time.monotonic() < until, machine.output
        time.sleep(0.05)


def _assert_gone(pid: int, within: float = 120.0) -> None:
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return
        except FileNotFoundError:
            return
        time.sleep(0.05)
    raise AssertionError(f"process {pid} still runs")
