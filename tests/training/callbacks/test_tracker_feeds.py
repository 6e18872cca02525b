"""TensorBoard and W&B for real: the whole history across a resume, and what a run does when they cannot be had."""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

RUN = {"log": {"every_steps": 1}, "eval": {"every_steps": 5}, "max_steps": 12, "name": "seen"}
CANARY = "canary-0123456789"
NAMED = "<env:SEEN_TOKEN>"
"""How a job names it."""
KEY = "a" * 40
"""As long as W&B wants one."""

DRIVE = """
import json, logging, sys, time
from pathlib import Path
from types import SimpleNamespace
from accelerate import PartialState
from skytune.config import Precision, RunConfig, from_dict
from skytune.job import Job, JobDir
from skytune.training.callbacks.base import Callbacks, Run
from skytune.training.callbacks.history import History
from skytune.training.callbacks import trackers as module
from skytune.training.callbacks.trackers import Tracking

given = json.load(sys.stdin)
PartialState(cpu=True)
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stdout)
config = from_dict(RunConfig, {"tracker": given["tracker"], "extra": {"api_token": given["canary"]}})
world = SimpleNamespace(
    main=True, size=1, describe=lambda: "cpu", precision=Precision.fp32, peak_memory_bytes=lambda: None
)
job = JobDir(given["job"])
run = Run(config=config, job=job, world=world, model=None, total_steps=20, steps_per_epoch=20)
history = History()
tracking = Tracking(Job(kind="train", run_key="a-run", config=config, labels=[]), history)
callbacks = Callbacks([("history", history), ("tracking", tracking)])
if given.get("stalled"):
    module.UPLOAD_SECONDS = 3.0
if given.get("resumed"):
    run.resumed_from = given["resumed"]
    history.records = [json.loads(line) for line in Path(given["history"]).read_text().splitlines()]
    run.step = given["resumed"]
slowest = 0.0
callbacks("on_run_start", run)
for run.step in range(run.step + 1, given.get("until", 20) + 1):
    run.loss, run.lr, run.train_seconds = 1 / run.step, 0.1, run.step / 10
    start = time.monotonic()
    callbacks("on_step_end", run)
    slowest = max(slowest, time.monotonic() - start)
while given.get("begun") and tracking.feeds[0].is_alive() and not tracking.feeds[0].place:
    time.sleep(0.1)
while given.get("lingers"):
    time.sleep(1)
start = time.monotonic()
run.preempted = bool(given.get("preempted"))
callbacks("on_run_end", run)
if not run.preempted:
    callbacks("on_model_saved", run)
facts = {"report": run.report, "slowest": slowest, "waited": time.monotonic() - start}
Path(given["job"], "facts.json").write_text(json.dumps(facts))
"""
"""Twenty steps without a model; given are the tracker's configuration, a folder, and what was recorded before."""


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    """Return what TensorBoard shows of a folder: value by step, by name; a step that is there twice is an error."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    found: dict[str, dict[int, float]] = {}
    for name in events.Tags()["scalars"]:
        shown = events.Scalars(name)
        found[name] = {event.step: event.value for event in shown}
        assert len(found[name]) == len(shown), name
    return found


def wandb_run(folder: Path) -> dict[str, Any]:
    """Return id, configuration and rows of a W&B run, as `wandb sync` would read them from its folder."""
    from wandb.proto import wandb_internal_pb2 as internal
    from wandb.sdk.internal.datastore import DataStore

    (file,) = folder.glob("*.wandb")
    store, found = DataStore(), {"rows": [], "config": {}}
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = internal.Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            found["id"], found["tags"], found["project"] = (
                record.run.run_id,
                list(record.run.tags),
                record.run.project,
            )
        for item in [*record.run.config.update, *record.config.update]:
            found["config"][item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if record.HasField("history"):
            items = record.history.item
            found["rows"].append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return found


def of_history(records: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Return the numbers of a history as trackers name them."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        if record["kind"] == "step":
            values = {f"train/{name}": record[name] for name in ("loss", "lr", "samples_per_s", "tokens_per_s")}
        else:
            values = {f"validation/{name}": value for name, value in record["metrics"].items()}
        for name, value in values.items():
            found.setdefault(name, {})[record["step"]] = value
    return found


def of_rows(rows: list[dict[str, Any]], names: Any) -> dict[str, dict[int, float]]:
    return {name: {row["_step"]: row[name] for row in rows if name in row} for name in names}


def holding(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.slow
def test_trackers_have_the_whole_history_across_a_resume(
    run_job: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at once, in a folder that outlives the run: one W&B run id, no step twice, no secret."""
    monkeypatch.setenv("SEEN_TOKEN", CANARY)
    pytest.importorskip("wandb")
    wandb = {"mode": "offline", "project": "mine", "args": {"tags": ["a", "b"], "job_type": "train"}}
    settings = {
        **RUN,
        "tracker": {"names": ["tensorboard", "wandb"], "dir": str(tmp_path / "seen"), "wandb": wandb},
        "checkpoint": {"store": str(tmp_path / "store"), "every_steps": 4, "keep": 99, "select": "last"},
        "extra": {"api_token": CANARY, "colour": "blue"},
    }
    first = run_job(rows=96, **settings)
    output = capfd.readouterr().out
    assert f"tracker tensorboard: tensorboard --logdir {tmp_path}" in output
    (store,) = (tmp_path / "store").iterdir()
    for folder in store.glob("step-*"):
        if int(folder.name[5:]) > 8:
            shutil.rmtree(folder)
    for file in ("finished.json", "completed.json"):
        (store / file).unlink(missing_ok=True)
    again = run_job(rows=96, **settings)
    assert (again.result["resumed_from"], again.result["run_key"]) == (8, first.result["run_key"])

    places = {name: Path(place["folder"]) for name, place in again.result["trackers"].items()}
    wanted = of_history(again.history)
    assert set(wanted["train/loss"]) == set(range(1, 13)) and set(wanted["validation/accuracy"]) == {5, 10, 12}
    shown = scalars(places["tensorboard"])
    assert len(list(places["tensorboard"].glob("events.*"))) == 2
    for name, values in wanted.items():
        assert shown[name] == pytest.approx(values, rel=1e-6), name

    runs = [wandb_run(Path(done.result["trackers"]["wandb"]["folder"])) for done in (first, again)]
    assert [run["id"] for run in runs] == [first.result["run_key"]] * 2
    assert runs[1]["tags"] == ["a", "b"] and runs[1]["project"] == "mine"
    assert of_rows(runs[1]["rows"], wanted) == wanted
    config = runs[1]["config"]
    assert config["extra"] == {"api_token": NAMED, "colour": "blue"}
    assert config["batch"]["global_size"] == 8 and config["run"]["key"] == first.result["run_key"]
    assert not holding(tmp_path, CANARY)


class Server(ThreadingHTTPServer):
    """As much of a W&B server as a run needs; keeps what it was told."""

    def __init__(self, status: int = 200, stalls: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.stalls = status, stalls
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.rows: dict[str, dict[int, dict[str, Any]]] = {}
        self.asked: list[str] = []
        self.received = b""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is none of our business."""

    def answer(self, asked: str, of: dict[str, Any]) -> dict[str, Any]:
        """Return what the API would."""
        self.asked.append(asked)
        project = {"id": "p", "name": of.get("project"), "entity": {"id": "e", "name": "me"}}
        rows = list(self.rows.get(str(of.get("name")), {}).values())
        bucket = {"id": "b", "name": of.get("name"), "project": project, "historyLineCount": len(rows), "config": "{}"}
        bucket |= dict.fromkeys(("displayName", "description"), "") | dict.fromkeys(
            ("eventsLineCount", "logLineCount"), 0
        )
        tail = json.dumps([json.dumps(row) for row in rows[-1:]])
        bucket |= {
            "historyTail": tail,
            "eventsTail": "[]",
            "summaryMetrics": "{}",
            "wandbConfig": '{"t": 1}',
            "tags": [],
        }
        if "Viewer" in asked:
            who = {"id": "u", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
            return {"viewer": who, "serverInfo": {"cliVersionInfo": {}, "latestLocalVersionInfo": None}}
        if asked == "RunResumeStatus":
            return {"model": {**project, "bucket": bucket if rows else None}}
        if asked == "UpsertBucket":
            return {"upsertBucket": {"bucket": bucket, "inserted": not rows}}
        if asked == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{name}"} for name in of["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {"serverInfo": {"features": []}} if asked == "ServerFeaturesQuery" else {}


class Handler(BaseHTTPRequestHandler):
    """GraphQL, the stream of rows, and uploads of files."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.received += body
        answer: dict[str, Any] = {}
        stream = re.fullmatch(r"/files/me/[^/]+/([^/]+)/file_stream", self.path)
        if self.path.endswith("/graphql"):
            query = json.loads(body)
            name = query.get("operationName") or query["query"].split("{")[0].strip()
            answer = {"data": self.server.answer(name, query.get("variables") or {})}
        elif stream and self.server.stalls:
            time.sleep(60)
        elif stream:
            part = json.loads(body).get("files", {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
            rows = self.server.rows.setdefault(stream[1], {})
            rows.update({part["offset"] + i: json.loads(line) for i, line in enumerate(part["content"])})
        if self.server.status != 200:
            answer = {"errors": [{"message": "this key is not welcome"}]}
        data = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_POST

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def drive(
    folder: Path, server: str | None, *, key: str | None = KEY, path: str = "", **given: Any
) -> "subprocess.Popen[str]":
    """Start the script above."""
    folder.mkdir(parents=True, exist_ok=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "SKYTUNE_"))}
    env["SEEN_TOKEN"] = CANARY
    env |= {"HOME": str(folder), "WANDB_API_KEY": key} if key else {"HOME": str(folder)}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [path, env.get("PYTHONPATH")]))
    if server:
        env["WANDB_BASE_URL"] = server
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVE],
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"job": str(folder), "canary": NAMED, **given}))
    process.stdin.close()
    process.stdin = None
    return process


def driven(process: "subprocess.Popen[str]", folder: Path) -> dict[str, Any]:
    """Wait for the script; return what it said and found."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    facts = json.loads((folder / "facts.json").read_text())
    return {**facts, "warnings": [line for line in out.splitlines() if line.startswith("WARNING")], "out": out + err}


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """What became of a W&B that has no server, a server that refuses, no key, and one that stalls at the end."""
    pytest.importorskip("wandb")
    folder = tmp_path_factory.mktemp("troubled")
    refusing, stalling = Server(status=401), Server(stalls=True)
    cases: dict[str, tuple[str | None, str | None, float]] = {
        "unreachable": ("http://127.0.0.1:9", KEY, 2.0),
        "refused": (refusing.url, KEY, 15.0),
        "keyless": (None, None, 15.0),
        "stalled": (stalling.url, KEY, 15.0),
    }
    running = {}
    for name, (url, key, seconds) in cases.items():
        tracker = {"names": ["wandb"], "wandb": {"args": {"settings": {"init_timeout": seconds}}}}
        stalled = name == "stalled"
        running[name] = drive(folder / name, url, key=key, begun=stalled, stalled=stalled, tracker=tracker)
    yield {name: {**driven(process, folder / name), "folder": folder / name} for name, process in running.items()}
    for server in (refusing, stalling):
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("unreachable", "2 s without an answer"),
        ("refused", "CommError: this key is not welcome"),
        ("keyless", "No API key configured"),
    ],
)
def test_wandb_that_cannot_go_online_says_so_once_and_is_kept(
    troubled: dict[str, dict[str, Any]], case: str, why: str
) -> None:
    found = troubled[case]
    (warning,) = found["warnings"]
    assert "tracker wandb is not online" in warning and why in warning
    place = found["report"]["trackers"]["wandb"]
    assert place["command"] == "wandb sync" and f"wandb sync {found['folder'] / place['folder']}" in warning
    kept = wandb_run(found["folder"] / place["folder"])
    assert kept["id"] == "a-run" and [row["_step"] for row in kept["rows"]] == [10, 20]
    assert found["slowest"] < 20  # training does not wait, not even for the import
    assert found["waited"] < 59
    assert KEY not in "".join(found["warnings"])
    assert not holding(found["folder"], CANARY) and not holding(found["folder"], KEY)


@pytest.mark.slow
def test_wandb_that_stalls_at_the_end_is_left_behind(troubled: dict[str, dict[str, Any]]) -> None:
    found = troubled["stalled"]
    (warning,) = found["warnings"]
    assert "tracker wandb did not take everything within 3 s" in warning
    assert found["waited"] < 300
    (history,) = re.findall(r"\((\S+) has it all\)", warning)
    assert [json.loads(line)["step"] for line in Path(history).read_text().splitlines()] == [10, 20]


@pytest.mark.slow
def test_wandb_online_is_one_run_whose_steps_go_on(tmp_path: Path) -> None:
    """Preempted after 15 steps; the server has not got all that the checkpoint remembers, and gets it."""
    pytest.importorskip("wandb")
    server = Server()
    tracker = {"names": ["wandb"]}
    process = drive(tmp_path / "one", server.url, tracker=tracker, begun=True, until=15, preempted=True)
    found = driven(process, tmp_path / "one")
    assert not found["warnings"], found["out"]
    assert found["report"]["trackers"]["wandb"]["url"] == f"{server.url}/me/skytune/runs/a-run"
    assert "RunResumeStatus" not in server.asked  # a new start replaces what was there
    (rows,) = server.rows.values()
    assert [row["_step"] for row in rows.values()] == [10]
    assert b'"preempting":true' in server.received and b'"exitcode":1' in server.received
    records = [{"kind": "step", "step": step, "loss": 1.0, "elapsed_s": step / 10} for step in (10, 12, 15)]
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(record) + "\n" for record in records))
    process = drive(tmp_path / "two", server.url, tracker=tracker, resumed=15, history=str(history))
    again = driven(process, tmp_path / "two")
    assert not again["warnings"], again["out"]
    assert "RunResumeStatus" in server.asked and list(server.rows) == ["a-run"]
    assert [row["_step"] for row in rows.values()] == [10, 12, 15, 20]
    assert NAMED.encode() in server.received.replace(b"\\u003c", b"<").replace(b"\\u003e", b">")
    assert CANARY.encode() not in server.received and KEY.encode() not in server.received
    server.shutdown()
    server.server_close()


def test_tensorboard_that_cannot_be_had_says_so_once(tmp_path: Path) -> None:
    """A file where its folder should be, a disk that is full, and no package on a bare machine (the default)."""
    (tmp_path / "file").write_text("in the way")
    full, bare = tmp_path / "full", tmp_path / "bare"
    full.mkdir()
    bare.mkdir()
    (bare / "sitecustomize.py").write_text("import sys\nsys.modules['tensorboard'] = None\n")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(full)], check=False)
    cases = {"file": tmp_path / "file", "bare": tmp_path / "any"} | ({"full": full} if mounted.returncode == 0 else {})
    reasons = {
        "file": "Error",
        "full": "No space left",
        "bare": "the package tensorboard is not installed here: pip inst",
    }
    try:
        running = {
            name: drive(
                tmp_path / f"job-{name}",
                None,
                path=str(bare) if name == "bare" else "",
                tracker={"names": ["auto" if name == "bare" else "tensorboard"], "dir": str(place)},
            )
            for name, place in cases.items()
        }
        for name, process in running.items():
            found = driven(process, tmp_path / f"job-{name}")
            (warning,) = found["warnings"]
            assert "tracker tensorboard failed" in warning and reasons[name] in warning, name
            assert found["slowest"] < 20 and found["waited"] < 59
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(full)], check=False)


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_no_service_behind(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    pytest.importorskip("wandb")
    tracker = {"names": ["wandb"], "wandb": {"mode": "offline"}}
    process = drive(tmp_path, None, tracker=tracker, begun=True, lingers=True)
    until, services = time.monotonic() + 600, []
    while time.monotonic() < until and not services:
        services = [c for c in psutil.Process(process.pid).children(recursive=True) if c.name() == "wandb-core"]
        time.sleep(0.2)
    assert services
    process.kill()
    process.communicate()
    assert psutil.wait_procs(services, timeout=600)[1] == []
