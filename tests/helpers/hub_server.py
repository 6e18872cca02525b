"""A Hub on this machine for tests: it speaks the routes that a store and a publication need (repository, tree, commit,
LFS, file; branches, tags, the metadata of cards)."""

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
        """Commits to `main` (id, message, files by path) of every repository, oldest first."""
        self.branches: dict[tuple[str, str], list[tuple[str, str, dict[str, bytes]]]] = {}
        """Likewise of every other branch."""
        self.tags: dict[str, dict[str, str]] = {}
        """Commits by tag."""
        self.sent: list[str] = []
        """Hashes of the large files that were sent."""
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

    def history(self, repo: str, revision: str) -> list[tuple[str, str, dict[str, bytes]]]:
        """Return the commits up to a branch, tag or commit; empty where there is none."""
        lines = [self.repos[repo], *(found for (name, _), found in self.branches.items() if name == repo)]
        if revision in ("main", "HEAD"):
            return lines[0]
        if (repo, revision) in self.branches:
            return self.branches[repo, revision]
        sha = self.tags.get(repo, {}).get(revision, revision)
        return next((line[: at + 1] for line in lines for at, one in enumerate(line) if one[0] == sha), [])

    def push(self, repo: str, message: str, files: dict[str, bytes], branch: str = "main") -> str:
        history = self.repos.setdefault(repo, []) if branch == "main" else self.branches[repo, branch]
        sha = hashlib.sha1(f"{repo}{branch}{len(history)}{message}".encode()).hexdigest()
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
                self.server.sent.append(parts[1])
                assert hashlib.sha256(body).hexdigest() == parts[1]
                self.server.blobs[parts[1]] = body
            return self.answer(200)
        if self.headers.get("Authorization") != self.server.token:
            return self.answer(401, {"error": "Invalid username or password."})
        if parts[:2] == ["api", "validate-yaml"]:
            return self.validate(json.loads(body)["content"])
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

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_any

    def route(self, repo: str, rest: list[str], body: bytes) -> None:
        about = rest[0] in ("revision", "tree", "preupload", "commit", "resolve") if rest else False
        revision = rest[1] if about and len(rest) > 1 else "main"
        history = self.server.history(repo, revision)
        if not history:
            return self.answer(404, {"error": "no such revision"}, "RevisionNotFound")
        sha, _, files = history[-1]
        if rest[:1] in (["branch"], ["tag"], ["refs"]):
            return self.refs(repo, sha, rest, body)
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
                    **({"oid": oid(f["path"], files[f["path"]])} if f["path"] in files else {}),
                }
                for f in json.loads(body)["files"]
            ]
            return self.answer(200, {"files": modes})
        if rest[:2] == ["info", "lfs"]:
            objects = [
                wanted
                if wanted["oid"] in self.server.blobs  # it has that content already
                else {**wanted, "actions": {"upload": {"href": f"{self.server.url}/blob/{wanted['oid']}"}}}
                for wanted in json.loads(body)["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": objects})
        if rest[0] == "commit":
            return self.commit(repo, revision, sha, dict(files), [json.loads(line) for line in body.splitlines()])
        if rest[0] == "resolve":
            data = files.get("/".join(rest[2:]))
            if data is None:
                return self.answer(404, {"error": "no such file"}, "EntryNotFound")
            return self.answer(200, data)
        return self.answer(404)

    def validate(self, content: str) -> None:
        """Say what is wrong with the metadata of a card."""
        import yaml

        try:
            values = yaml.safe_load(content.split("---")[1])
            assert isinstance(values, dict), "not an object"
        except (yaml.YAMLError, IndexError, AssertionError) as error:
            return self.answer(400, {"errors": [{"message": str(error)}], "warnings": []})
        return self.answer(200, {"errors": [], "warnings": []})

    def refs(self, repo: str, head: str, rest: list[str], body: bytes) -> None:
        """Make, take away and list branches and tags."""
        server, tags = self.server, self.server.tags.setdefault(repo, {})
        asked = json.loads(body) if body else {}
        if rest[0] == "refs":
            lines = {"main": server.repos[repo], **{b: line for (r, b), line in server.branches.items() if r == repo}}
            heads = {name: line[-1][0] for name, line in lines.items()}
            named = [("branches", "heads", heads), ("tags", "tags", tags)]
            found = {
                kind: [{"name": name, "ref": f"refs/{ref}/{name}", "targetCommit": sha} for name, sha in known.items()]
                for kind, ref, known in named
            }
            return self.answer(200, {**found, "converts": []})
        if rest[0] == "branch":
            if rest[1] == "main" or (repo, rest[1]) in server.branches:
                return self.answer(409, {"error": "Reference already exists"})
            server.branches[repo, rest[1]] = list(server.history(repo, asked.get("startingPoint") or "main"))
            return self.answer(200)
        if self.command == "DELETE":
            return self.answer(200 if tags.pop(rest[1], None) else 404)
        if asked["tag"] in tags:
            return self.answer(409, {"error": "Tag reference exists already"})
        tags[asked["tag"]] = server.history(repo, rest[1])[-1][0]
        return self.answer(200)

    def commit(self, repo: str, branch: str, head: str, files: dict[str, bytes], lines: list[dict[str, Any]]) -> None:
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
        sha = self.server.push(repo, message, files, branch)
        self.answer(200, {"commitUrl": f"{self.server.url}/{repo}/commit/{sha}", "commitOid": sha})


def oid(path: str, data: bytes) -> str:
    """Return what the Hub knows a file's content by."""
    if path.endswith("safetensors"):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
