"""A store on the Hub, against a server that speaks the routes it needs: repository, tree, commit, LFS, file."""

import base64
import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from skytune.config import UserError
from skytune.training.checkpoint.lease import LeaseHeld, acquire
from skytune.training.checkpoint.opening import runs
from skytune.training.checkpoint.retry import Retry
from skytune.training.checkpoint.store import Store

FAST = Retry(deadline_seconds=1, first_seconds=0.02, longest_seconds=0.1)


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.lock = threading.Lock()
        self.repos: dict[str, list[tuple[str, str, dict[str, bytes]]]] = {}
        """Commits (id, message, files by path) of every repository, oldest first."""
        self.visibility: dict[str, Any] = {}
        self.blobs: dict[str, bytes] = {}
        self.failing: list[int] = []
        """Statuses of the next commits."""
        self.token = "Bearer hf_right"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def push(self, repo: str, message: str, files: dict[str, bytes]) -> str:
        history = self.repos.setdefault(repo, [])
        sha = hashlib.sha1(f"{repo}{len(history)}{message}".encode()).hexdigest()
        history.append((sha, message, files))
        return sha

    def messages(self, repo: str) -> list[str]:
        return [message for _, message, _ in self.repos[repo]]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: Any = b"", code: str = "") -> None:
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        parts = [urllib.parse.unquote(p) for p in urllib.parse.urlsplit(self.path).path.strip("/").split("/")]
        if parts[0] == "blob":
            if self.command == "PUT":
                assert hashlib.sha256(body).hexdigest() == parts[1]
                self.server.blobs[parts[1]] = body
            return self.answer(200)
        if self.headers.get("Authorization") != self.server.token:
            return self.answer(401, {"error": "Invalid username or password."})
        if parts[:3] == ["api", "repos", "create"]:
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.server.repos:
                return self.answer(409, {"error": "You already created this model repo"})
            self.server.visibility[name] = asked.get("private", asked.get("visibility"))
            self.server.push(name, "initial commit", {".gitattributes": b"*.safetensors filter=lfs"})
            return self.answer(200, {"url": f"{self.server.url}/{name}", "name": name, "id": "1"})
        repo = "/".join(parts[2:4]) if parts[0] == "api" else "/".join(parts[:2]).removesuffix(".git")
        if repo not in self.server.repos:
            return self.answer(404, {"error": "Repository not found"}, "RepoNotFound")
        rest = parts[4:] if parts[0] == "api" else parts[2:]
        with self.server.lock:
            self.route(repo, rest, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_any

    def route(self, repo: str, rest: list[str], body: bytes) -> None:
        history = self.server.repos[repo]
        sha, _, files = history[-1]
        if rest[:1] == ["auth-check"]:
            return self.answer(200)
        if not rest or rest[0] == "revision":
            return self.answer(200, {"id": repo, "sha": sha, "private": True, "tags": [], "siblings": []})
        if rest[0] == "tree":
            under = "/".join([*rest[2:], ""]) if rest[2:] else ""
            inside = [path for path in files if path.startswith(under)]
            if not inside:
                return self.answer(404, {"error": "no such folder"}, "EntryNotFound")
            names = sorted({path[len(under) :].split("/")[0] for path in inside})
            entry = [
                {"type": "file", "path": under + n, "size": len(files[under + n]), "oid": "0" * 40}
                if under + n in files
                else {"type": "directory", "path": under + n, "oid": "0" * 40}
                for n in names
            ]
            return self.answer(200, entry)
        if rest[0] == "preupload":
            modes = [
                {"path": f["path"], "uploadMode": "lfs" if f["path"].endswith("safetensors") else "regular",
                 "shouldIgnore": False}
                for f in json.loads(body)["files"]
            ]  # fmt: skip
            return self.answer(200, {"files": modes})
        if rest[:2] == ["info", "lfs"]:
            objects = [
                {**wanted, "actions": {"upload": {"href": f"{self.server.url}/blob/{wanted['oid']}"}}}
                for wanted in json.loads(body)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        if rest[0] == "commit":
            return self.commit(repo, sha, dict(files), [json.loads(line) for line in body.splitlines()])
        if rest[0] == "resolve":
            known = {commit: at for commit, _, at in history} | {"main": files}
            data = known[rest[1]].get("/".join(rest[2:]))
            if data is None:
                return self.answer(404, {"error": "no such file"}, "EntryNotFound")
            return self.answer(200, data)
        return self.answer(404)

    def commit(self, repo: str, head: str, files: dict[str, bytes], lines: list[dict[str, Any]]) -> None:
        if self.server.failing:
            return self.answer(self.server.failing.pop(0), {"error": "by the test"})
        message = ""
        for line in lines:
            key, value = line["key"], line["value"]
            if key == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, head):
                    return self.answer(412, {"error": "A commit has happened since. Please refresh and try again."})
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
            elif key == "deletedFolder":
                files = {path: data for path, data in files.items() if not path.startswith(value["path"])}
        sha = self.server.push(repo, message, files)
        self.answer(200, {"commitUrl": f"{self.server.url}/{repo}/commit/{sha}", "commitOid": sha})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(hub: Hub) -> Store:
    return Store.open("hf://me/run-store/deep/folder", "run-1", retry=FAST)


def write(store: Store, step: int, **more: Any) -> None:
    files = {"model.safetensors": b"w%d" % step * 300, "optimizer.json": b"[%d]" % step}
    store.write(step, files, state=more)


def test_a_private_repository_is_made_and_each_checkpoint_is_one_commit(hub, store, tmp_path):
    assert store.newest() is None and store.steps() == []
    store.check_writable()
    assert hub.visibility == {"me/run-store": "private"} and hub.messages("me/run-store") == ["initial commit"]
    for step in (1, 2, 3):
        write(store, step, loss=step)
    assert hub.messages("me/run-store")[1:] == [f"Save run-1/step-0000000{step}" for step in (1, 2, 3)]
    found = Store.open("hf://me/run-store/deep/folder", "run-1").newest(into=tmp_path)
    assert found.manifest.step == 3 and found.manifest.state == {"loss": 3}
    assert found.files["model.safetensors"].read_bytes() == b"w3" * 300
    assert store.rotate(1, newest=3, best=1) == [2] and store.steps() == [1, 3]
    assert runs("hf://me/run-store/deep/folder") == ["run-1"]
    store.clear()
    assert store.newest() is None
    assert list(hub.repos["me/run-store"][-1][2]) == [".gitattributes"]


def test_broken_ones_are_named(hub, store):
    write(store, 1)
    write(store, 2)
    files = dict(hub.repos["me/run-store"][-1][2])
    files["deep/folder/run-1/step-00000002/model.safetensors"] = b"w2" * 299 + b"w?"
    hub.push("me/run-store", "somebody edits", files)
    found = store.newest()
    assert found.manifest.step == 1 and found.skipped[0].startswith("step-00000002: model.safetensors is damaged")


def test_errors_for_a_while_are_outlasted_and_forever_break_nothing(hub, store):
    write(store, 1)
    hub.failing = [500, 503, 429]
    write(store, 2)
    assert store.newest().manifest.step == 2
    hub.failing = [503] * 1000
    with pytest.raises(UserError, match="gave up on finishing step-00000003"):
        write(store, 3)
    hub.failing = []
    assert store.newest().manifest.step == 2


def test_what_does_not_pass_is_told_at_once(hub, store, monkeypatch):
    write(store, 1)
    hub.failing = [403]
    with pytest.raises(UserError, match=r"^hf://me/run-store/deep/folder/run-1: no permission for finishing"):
        write(store, 2)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    other = Store.open("hf://me/run-store/deep/folder", "run-1", retry=FAST)
    for attempt in (other.check_writable, other.newest):
        with pytest.raises(UserError, match="the Hub does not accept the token"):
            attempt()
    for url in ("hf://me", "hf://datasets/me/name", "hf://me/name@main"):
        with pytest.raises(UserError, match="hf://user/name"):
            Store.open(url, "run-1")


def test_offline_is_told_at_once(store, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        store.check_writable()


def test_a_lease_is_atomic(hub, store):
    held = acquire(store, "launch-1")
    assert held.atomic
    with pytest.raises(LeaseHeld):
        acquire(store, "launch-2")
    write(store, 1)
    held.renew()  # although the branch moved
    won, lost = [], []

    def attempt(number: int) -> None:
        try:
            won.append(acquire(store, f"launch-{number}"))
        except LeaseHeld:
            lost.append(number)

    held.release()
    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 3)
    won[0].release()
