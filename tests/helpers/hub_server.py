"""A Hub on this machine for tests: it speaks the routes that a store needs (repository, tree, commit, LFS, file)."""

import base64
import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any


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
        self.at_once = False
        """Whether others create repositories at the same moment."""
        self.fault: Callable[[str, str], int | None] | None = None
        """Given method and path, before the body is read: may wait (be silent), answer a status, or let pass (None)."""
        self.token = "Bearer hf_right"
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def push(self, repo: str, message: str, files: dict[str, bytes]) -> str:
        history = self.repos.setdefault(repo, [])
        sha = hashlib.sha1(f"{repo}{len(history)}{message}".encode()).hexdigest()
        history.append((sha, message, files))
        return sha

    def files(self, repo: str) -> dict[str, bytes]:
        """Return what the newest commit holds."""
        return self.repos[repo][-1][2]

    def messages(self, repo: str) -> list[str]:
        return [message for _, message, _ in self.repos[repo]]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            pass  # the client has gone

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
        fault = self.server.fault
        status = fault(self.command, self.path) if fault else None
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            return None  # the client has gone
        if status is not None:
            return self.answer(status, {"error": "by the test"})
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
                # Where two create it at once, the loser's answer lacks the address (huggingface_hub's issue 3279).
                url = {} if self.server.at_once else {"url": f"{self.server.url}/{name}"}
                return self.answer(409, {"error": "You already created this model repo", **url})
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
                {
                    "path": f["path"],
                    "uploadMode": "lfs" if f["path"].endswith("safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for f in json.loads(body)["files"]
            ]
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
