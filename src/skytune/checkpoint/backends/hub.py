"""A store in a model repository of the Hugging Face Hub: private, made when it is absent, one commit a checkpoint.

A commit is all or nothing, and `parent_commit` makes it conditional, so leases are atomic. Commits are rationed on the
Hub: heartbeats are slow here. Deleted checkpoints stay in the repository's history and count as storage there, until
someone squashes it (`HfApi.super_squash_history`).
"""

import os
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from ...config import UserError
from ...config.installing import add_extra
from .. import manifest as manifests
from .base import BLOCK, Backend

LIBRARY = "skytune-checkpoints"
"""Name by which a store's requests are known, in their `user-agent`."""

_patience = 60.0
"""Seconds that a store's request may stand still: the shortest that was asked for in this process."""


def be_patient(seconds: float) -> None:
    """Let a store's requests to the Hub end after so many seconds without any progress. May be called again.

    huggingface_hub's own wait for an answer without end, and it tries some failures again five times by itself. A
    store's must end when nothing moves, so that `Retry` alone decides how long a store that is away is tried. All other
    requests, downloads of models and data sets above all, are left as they are.
    """
    global _patience
    _patience = min(_patience, seconds)
    _set_client()


@cache
def _set_client() -> None:
    # hf_xet takes the content of large files there: it shall try a request twice, not five times, before `Retry` has
    # its turn (it does not send again what has arrived). Its timeouts stay: they count from a request's begin.
    os.environ.setdefault("HF_XET_CLIENT_RETRY_MAX_ATTEMPTS", "1")
    import httpx
    from huggingface_hub import get_session, set_client_factory

    class StoodStill(httpx.TransportError):
        """None of the kinds that huggingface_hub tries again by itself."""

    class Client(httpx.Client):
        def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
            # The content of a large file goes to an address that the Hub gave for it, without headers: only uploads do.
            if LIBRARY not in request.headers.get("user-agent", "") and request.method != "PUT":
                return super().send(request, **options)
            bounds = request.extensions.get("timeout") or {}
            names = ("connect", "read", "write", "pool")
            wanted = {name: _patience if bounds.get(name) is None else bounds[name] for name in names}
            request.extensions = {**request.extensions, "timeout": wanted}
            try:
                return super().send(request, **options)
            except httpx.TimeoutException as error:
                what = f"{request.method} {request.url.copy_with(query=None)}"
                raise StoodStill(f"no progress for {_patience:.0f} s: {what}", request=request) from error
            except httpx.NetworkError as error:
                raise StoodStill(str(error) or type(error).__name__, request=request) from error

    hooks = get_session().event_hooks  # huggingface_hub's own, or those of a client that a person has made
    set_client_factory(lambda: Client(event_hooks=hooks, follow_redirects=True, timeout=None))


class HubBackend(Backend):
    """`hf://user/name[/folder]`."""

    heartbeat_seconds = 600.0
    shared = False
    largest_file = 200 * 10**9  # huggingface_hub's own MAX_FILE_SIZE_GB

    def __init__(self, url: str, repo: str, folder: str) -> None:
        super().__init__(url, None, folder)
        self.repo = repo
        self._there = False

    @classmethod
    def open(cls, url: str, patience: float = 60.0) -> "HubBackend":
        """Return the backend of a URL.

        Args:
            patience: seconds without any progress after which the Hub counts as away.

        Raises:
            UserError: it does not name a user's repository, or huggingface_hub is missing.
        """
        user, name, *folder = [*url.removeprefix("hf://").strip("/").split("/"), ""]
        if not user or not name or user in ("datasets", "spaces", "models", "buckets") or "@" in name:
            raise UserError(f"checkpoint.store={url}: write hf://user/name (a model repository), or with a folder")
        try:
            be_patient(patience)
        except ImportError as error:
            raise UserError(f"checkpoint.store={url}: needs another package ({error}): {add_extra('train')}") from error
        return cls(url, f"{user}/{name}", "/".join(folder).strip("/"))

    @cached_property
    def api(self) -> Any:
        """The Hub's client."""
        from huggingface_hub import HfApi

        return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name=LIBRARY)

    def path(self, path: str) -> str:
        return f"{self.root}/{path}".strip("/")

    def names(self, folder: str) -> dict[str, int | None]:
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError

        try:
            found = list(self.api.list_repo_tree(self.repo, self.path(folder) or None))
        except EntryNotFoundError:
            return {}
        except RepositoryNotFoundError as error:
            if error.response.status_code != 404:  # a token that is not accepted is no empty store
                raise
            return {}
        return {entry.path.rsplit("/", 1)[-1]: getattr(entry, "size", None) for entry in found}

    def read(self, path: str) -> bytes:
        return b"".join(self.blocks(path))

    def blocks(self, path: str, revision: str = "main") -> Iterator[bytes]:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError
        from huggingface_hub.utils import (  # type: ignore[attr-defined]
            build_hf_headers,
            get_session,
            hf_raise_for_status,
        )

        address = hf_hub_url(self.repo, self.path(path), revision=revision, endpoint=self.api.endpoint)
        headers = {**build_hf_headers(library_name=LIBRARY), "Accept-Encoding": "identity"}
        with get_session().stream("GET", address, headers=headers, follow_redirects=True) as response:
            try:
                if response.status_code >= 400:
                    response.read()  # the reason
                hf_raise_for_status(response)
            except EntryNotFoundError as error:
                raise FileNotFoundError(path) from error
            except RepositoryNotFoundError as error:
                if error.response.status_code != 404:
                    raise
                raise FileNotFoundError(path) from error
            yield from response.iter_bytes(BLOCK)

    def write(self, path: str, data: bytes) -> None:
        self._commit(f"Write {path}", {path: data})

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """In one commit."""
        self._commit(f"Write {list(files)[-1]}", files)

    def delete(self, path: str) -> None:
        from huggingface_hub import CommitOperationDelete

        folder, _, name = path.rpartition("/")
        if name in self.names(folder):
            self._commit(f"Delete {path}", {}, CommitOperationDelete(self.path(path)))

    def remove(self, folder: str) -> None:
        from huggingface_hub import CommitOperationDelete

        if self.names(folder):
            self._commit(f"Delete {folder}", {}, CommitOperationDelete(f"{self.path(folder)}/", is_folder=True))

    def unfinish(self, folder: str) -> None:
        """Nothing: a commit replaces all files at once."""

    def put(self, folder: str, name: str, path: Path) -> None:
        """Nothing: files wait in the workspace for the commit."""

    def commit(self, folder: str, workspace: Path, data: bytes, completed: bytes) -> None:
        """One commit has it all."""
        run = folder.rpartition("/")[0]
        files: dict[str, bytes | Path] = {f"{folder}/{file.name}": file for file in sorted(workspace.iterdir())}
        files[f"{folder}/{manifests.NAME}"] = data
        files[f"{run}/{manifests.COMPLETED}"] = completed
        self._commit(f"Save {folder}", files)

    def probe(self, path: str) -> None:
        """Asks for the right to write instead of writing, which would be two commits."""
        self._ensure()
        self.api.auth_check(self.repo, write=True)

    def read_version(self, path: str) -> tuple[bytes | None, Any]:
        """The version is the branch's commit."""
        self._ensure()
        head = self.api.repo_info(self.repo).sha
        try:
            return b"".join(self.blocks(path, head)), head
        except FileNotFoundError:
            return None, head

    def swap(self, path: str, data: bytes, version: Any) -> bool:
        from huggingface_hub.errors import HfHubHTTPError

        try:
            self._commit(f"Write {path}", {path: data}, parent=version)
        except HfHubHTTPError as error:
            if error.response.status_code == 412:
                return False
            raise
        return True

    def _ensure(self) -> None:
        """Make the repository where there is none: private."""
        if not self._there:
            try:
                self.api.create_repo(self.repo, private=True, exist_ok=True)
            except KeyError:
                pass  # another process made it at the same moment: the Hub's answer then lacks what the client wants
            self._there = True

    def _commit(self, message: str, files: Any, *others: Any, parent: str | None = None) -> None:
        from huggingface_hub import CommitOperationAdd

        self._ensure()
        adds = [
            CommitOperationAdd(self.path(name), content if isinstance(content, bytes) else str(content))
            for name, content in files.items()
        ]
        try:
            self.api.create_commit(self.repo, [*adds, *others], commit_message=message, parent_commit=parent)
        except RuntimeError as error:  # around what went wrong with a large file, of which it says nothing
            raise error.__cause__ or error from None
