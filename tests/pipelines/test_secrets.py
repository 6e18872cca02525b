"""Case 35: a run whose environment and configuration hold secrets, and every file that it leaves."""

import contextlib
import hashlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

CANARIES = {
    "HF_TOKEN": "hf_canaryOfTheHub0123456789abcdef",
    "WANDB_API_KEY": "canaryOfWandb0123456789abcdefABCDEF012345",
    "AWS_SECRET_ACCESS_KEY": "canary/Of+Aws0123456789abcdefABCDEF012345",
    "AWS_SESSION_TOKEN": "canaryOfTheSession0123456789",
}
IN_CONFIG = "canary-of-the-config-42"

OWN = '''
"""A callback that needs a secret, and looks at the command lines of its process, those above and those below."""
import hashlib
import json
import os
from pathlib import Path


class Witness:
    def __init__(self, folder, password):
        self.folder, self.password = Path(folder), password

    def on_step_end(self, run):
        ours, above = os.getpgid(0), []
        pid = os.getpid()
        while pid > 1 and str(pid) != os.environ["SKYTUNE_LAUNCHER_PID"]:
            above.append(pid)
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        lines = []
        for entry in Path("/proc").iterdir():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else None
                if fields and (int(entry.name) in above or int(fields[1]) in above or int(fields[2]) == ours):
                    lines.append((entry / "cmdline").read_bytes().decode(errors="replace").replace("\\0", " "))
            except OSError:
                continue
        hashed = hashlib.sha256(self.password.encode()).hexdigest()
        self.folder.joinpath("seen.json").write_text(json.dumps({
            "password": hashed, "extra": run.extra["api_token"] == self.password,
            "config": run.config.extra["api_token"], "lines": lines,
        }))


def rows(password):
    raise RuntimeError(f"the data base does not know {password}")
'''


class Refusing(BaseHTTPRequestHandler):
    """A W&B server that knows nobody."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b'{"errors": [{"message": "user is not logged in"}]}'
        self.send_response(401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def refusing() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def secretive(
    new_checkout: Callable[[], Any], small: list[str], refusing: str, tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """A small run with secrets all over, with both trackers, one of which cannot go online."""
    pytest.importorskip("wandb")
    checkout, folder = new_checkout(), tmp_path_factory.mktemp("seen")
    (checkout.home / "own.py").write_text(OWN)
    checkout.done = checkout.run(
        *small,
        "max_steps=4",
        "log.every_steps=1",
        "name=secretive",
        "tracker=tensorboard-wandb",
        "launch.threads=1",
        "+extra.api_token='${oc.env:MY_TOKEN}'",
        f"+callbacks.witness={{_target_: own.Witness, folder: {folder}, password: '${{oc.env:MY_TOKEN}}'}}",
        "+extra.store='s3://somebody:${oc.env:MY_TOKEN}@host/x'",
        f"checkpoint.store={checkout.home}/checkpoints",
        WANDB_BASE_URL=refusing,
        MY_TOKEN=IN_CONFIG,
        **CANARIES,
    )
    assert checkout.done.code == 0, checkout.done.err
    checkout.seen = json.loads((folder / "seen.json").read_text())
    return checkout


def holding(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


@pytest.mark.parametrize("text", [*CANARIES.values(), IN_CONFIG], ids=[*CANARIES, "config"])
def test_no_file_has_a_secret(secretive: Any, text: str) -> None:
    files = [path for path in secretive.source.rglob("*") if path.is_file()]
    kinds = {"zenml.db", "job.json", "report.html", "manifest.json", "history.jsonl", "result.json", "rank-0.log"}
    assert kinds <= {path.name for path in files}
    assert any(path.suffix == ".wandb" for path in files) and any("tfevents" in path.name for path in files)
    assert holding(secretive.source, text) == []
    assert text not in secretive.done.out + secretive.done.err


def test_its_place_is_marked_and_whoever_needs_it_has_it(secretive: Any) -> None:
    (job,) = (secretive.home / "skytune" / "runs").glob("secretive-*/job.json")
    values = json.loads(job.read_text())
    assert values["config"]["extra"]["api_token"] == "<env:MY_TOKEN>"
    assert values["config"]["extra"]["store"] == "s3://somebody:<env:MY_TOKEN>@host/x"
    assert values["decisive"]["callbacks"]["witness"]["password"] == "<env:MY_TOKEN>"
    assert secretive.seen["password"] == hashlib.sha256(IN_CONFIG.encode()).hexdigest() and secretive.seen["extra"]
    assert secretive.seen["config"] == "<env:MY_TOKEN>"


def test_no_command_line_of_the_workers_has_one(secretive: Any) -> None:
    lines = secretive.seen["lines"]
    assert any("skytune.training.worker" in line for line in lines)
    for text in (*CANARIES.values(), IN_CONFIG):
        assert not [line for line in lines if text in line]


def test_a_tracker_that_cannot_go_online_is_told_once_and_the_summary_names_the_files(secretive: Any) -> None:
    out = secretive.done.out
    assert out.count("tracker wandb is not online (CommError: user is not logged in)") == 1
    (run,) = (secretive.home / "skytune" / "runs").glob("secretive-*")
    summary = out[out.rindex("test         ") :]
    assert f"tensorboard  tensorboard --logdir {run / 'outputs/trackers/tensorboard'}" in summary
    assert f"wandb        wandb sync {run / 'outputs/trackers/wandb/offline-run-'}" in summary
    page = (run / "outputs" / "report.html").read_text()
    assert f"tensorboard --logdir {run / 'outputs/trackers/tensorboard'}" in page


def test_zenml_has_the_numbers_of_the_trackers(secretive: Any) -> None:
    (run,) = (secretive.home / "skytune" / "runs").glob("secretive-*")
    history = [json.loads(line) for line in (run / "outputs" / "history.jsonl").read_text().splitlines()]
    result = json.loads((run / "outputs" / "result.json").read_text())
    store = secretive.home / "zenml/local_stores/default_zen_store/zenml.db"
    with contextlib.closing(sqlite3.connect(store)) as database:
        found = {key: json.loads(value) for key, value in database.execute("select key, value from run_metadata")}
    step = [record for record in history if record["kind"] == "step"][-1]
    for name in ("loss", "lr", "samples_per_s"):
        assert found[f"train/{name}"] == pytest.approx(step[name])
    checked = [record for record in history if record["kind"] == "validation"][-1]["metrics"]
    for name in ("loss", "accuracy"):
        assert found[f"validation/{name}"] == pytest.approx(checked[name])
    assert found["best/step"] == result["best"]["step"] and found["best/value"] == result["best"]["value"]


def test_an_error_that_names_a_secret_is_recorded_without(secretive: Any) -> None:
    """The data's own code fails while the step runs; ZenML keeps what it said."""
    done = secretive.run(
        "data._target_=own.rows",
        "+data.args.password='${oc.env:MY_TOKEN}'",
        "cache=false",
        "tracker=none",
        "model.pretrained=false",
        MY_TOKEN=IN_CONFIG,
    )
    assert done.code == 1
    assert "the data base does not know <secret>" in done.err
    assert IN_CONFIG not in done.out + done.err
    kept = holding(secretive.home, "the data base does not know <secret>")
    assert "zenml.db" in {path.name for path in kept} and holding(secretive.source, IN_CONFIG) == []
