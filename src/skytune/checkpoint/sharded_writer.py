"""Saving where every process holds a part: each writes and hashes its own files, rank 0 finishes with the manifest.

    model-rank-00000-of-00002.safetensors   optimizer-rank-00000-of-00002.safetensors   (one of each a process)
    shards.json                             where each piece of each tensor lies (see `shards`)
    optimizer.json, history.json, manifest.json

Nobody waits in a collective operation, which would hang if a peer died: processes leave word in the key-value store
through which they found each other, and rank 0 looks there until a deadline.
"""

import json
import os
import time
import uuid
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ..common.json import load_json
from ..config import UserError
from .async_writer import Tensors, Writer, _Save, saver
from .backends.base import LocalBackend, S3Backend
from .manifest import FileEntry, Manifest, step_name
from .optimizer_state import join_states, state_names
from .shards import INDEX, file_name, index_of, join_indexes, pieces
from .store import Store

if TYPE_CHECKING:
    import torch

PATIENCE = 900.0
"""Seconds that rank 0 waits for the others' files once its own are written."""


class Board:
    """Small messages between the processes of a run, by key; nothing here waits longer than it says."""

    made = 0
    """How many this process made: all processes make the same ones, and the messages of each stay apart."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        Board.made += 1
        self._store: Any = None
        if size > 1:
            import torch.distributed as dist

            # A connection of our own: the process group's is in use while training goes on.
            store: Any
            if file := os.environ.get("SKYTUNE_RENDEZVOUS"):  # they met in a file, and nobody listens at a port
                store = dist.FileStore(f"{file}-checkpoints", size)
            else:
                store = dist.TCPStore(
                    os.environ["MASTER_ADDR"],
                    int(os.environ["MASTER_PORT"]),
                    is_master=False,
                    timeout=timedelta(seconds=60),
                    wait_for_workers=False,
                )
            self._store = dist.PrefixStore(f"skytune-checkpoints-{Board.made}", store)

    def post(self, key: str, value: Any) -> None:
        """Leave a JSON value."""
        if self._store is not None:
            self._store.set(key, json.dumps(value))

    def read(self, key: str, seconds: float) -> Any:
        """Return a JSON value once it is there; None when it is not there in time."""
        until = time.monotonic() + seconds
        while not self._store.check([key]):
            if time.monotonic() > until:
                return None
            time.sleep(0.02)
        return load_json(self._store.get(key))


class ShardWriter(Writer):
    """A `Writer` on every process; rank 0's events speak for the whole checkpoint."""

    def __init__(
        self,
        store: Store,
        board: Board,
        *,
        own: Collection[str] = (),
        patience: float = PATIENCE,
        **options: Any,
    ) -> None:
        """Begin; all processes do it together.

        Args:
            own: files whose plain tensors are this process's own; of the others' all processes have the same copy.
            options: those of `Writer`; its caller asks `ready` first, and all processes skip a save together.

        Raises:
            UserError: a kind of store that several processes cannot write to, or a peer that does not answer.
        """
        super().__init__(store, world_size=board.size, **options)
        if board.size > 1 and not isinstance(store.backend, (LocalBackend, S3Backend)):
            raise UserError(
                f"checkpoint.store={store.backend.url}: with a sharded strategy several processes write one "
                "checkpoint, which needs a folder or s3://"
            )
        self.board, self.patience, self.own = board, patience, frozenset(own)
        self.main = board.rank == 0
        self.count = 0
        """Saves so far: the same number on all processes."""
        token = uuid.uuid4().hex[:12]
        if self.main:
            board.post("token", token)
        found = token if self.main else board.read("token", 120)
        if found is None:
            raise UserError("rank 0 did not say within 120 s that it opened the checkpoint store")
        self.token = str(found)

    def prepare(self, tensors: Tensors) -> None:
        """As `Writer` does, for this process's part."""
        super().prepare(self._own_part(tensors)[0])

    def submit(self, step: int, tensors: Tensors, state: Mapping[str, Any], **options: Any) -> float:
        """As `Writer` does; all processes call it for the same steps. `tensors` may be DTensors."""
        self.count += 1
        part, index = self._own_part(tensors)
        options["documents"] = {**(options.get("documents") or {}), INDEX: index}
        # Never skipped here: a process that skipped alone would keep the others waiting for its part.
        return super().submit(step, part, state, **{**options, "must": True})

    def _own_part(self, tensors: Tensors) -> tuple[dict[str, dict[str, "torch.Tensor"]], dict[str, Any]]:
        """Return the pieces that this process writes, by file, and what the index says of them."""
        part: dict[str, dict[str, torch.Tensor]] = {}
        index: dict[str, Any] = {}
        for kind, named in tensors.items():
            found = pieces(named, self.main or kind in self.own)
            index[kind] = {}  # what no process has tensors of (an SGD without momentum) is empty, not missing
            if not found:
                continue
            name = file_name(kind, self.board.rank, self.board.size)
            part[name] = {key: piece.tensor for key, piece in found.items()}
            index[kind] = index_of(found, f"{name}.safetensors")
        return part, index

    def _write(self, save: _Save) -> Manifest:
        prefix, token = f"{self.count}", f"{self.token}-{self.count}" if self.board.size > 1 else None
        try:
            with self.store.stage(save.step, token, main=self.main or not self._shared) as stage:
                entries = {f"{n}.safetensors": stage.put(f"{n}.safetensors", saver(t)) for n, t in save.tensors.items()}
                parsed = {name: json.loads(data) for name, data in save.documents.items()}
                own = {
                    "files": {name: [entry.size, entry.sha256] for name, entry in entries.items()},
                    "index": parsed.pop(INDEX),
                    "optimizer": parsed.get("optimizer"),
                }
                if not self.main:
                    self.board.post(f"{prefix}/{self.board.rank}", own)
                    return _partial(save, entries)
                parts = [own, *self._others(prefix)]
                for part in parts[1:]:
                    entries |= {name: FileEntry(size=e[0], sha256=e[1]) for name, e in part["files"].items()}
                if self._shared:
                    lost = next((name for name in entries if not (stage.workspace / name).is_file()), None)
                    if lost is not None:
                        raise UserError(
                            f"{lost} was written to {self.store.location} on another machine, which is not the same "
                            "folder there: checkpoint.store must be one that all machines share, or s3://"
                        )
                kinds = sorted({kind for part in parts for kind in part["index"]})
                joined = {kind: join_indexes([part["index"].get(kind, {}) for part in parts]) for kind in kinds}
                documents = {**parsed, INDEX: joined}
                if own["optimizer"] is not None:
                    documents["optimizer"] = join_states([part["optimizer"] for part in parts])
                    lost = next(iter(state_names(documents["optimizer"]).keys() - joined.get("optimizer", {})), None)
                    if lost is not None:
                        raise UserError(f"no process wrote {lost}")
                for name, value in documents.items():
                    entries[f"{name}.json"] = stage.put(f"{name}.json", json.dumps(value).encode())
                return stage.commit(entries, **save.arguments)
        except BaseException as error:
            self.board.post(f"{prefix}/{self.board.rank}", {"error": str(error) or type(error).__name__})
            raise

    @property
    def _shared(self) -> bool:
        """Whether all processes make their files in one folder."""
        return self.board.size > 1 and isinstance(self.store.backend, LocalBackend)

    def _others(self, prefix: str) -> list[dict[str, Any]]:
        """Return what the other processes say of their files.

        Raises:
            UserError: one failed, or is silent.
        """
        until, found = time.monotonic() + self.patience, []
        for rank in range(1, self.board.size):
            answer = self.board.read(f"{prefix}/{rank}", max(0.0, until - time.monotonic()))
            if answer is None:
                raise UserError(f"process {rank} did not write its part within {self.patience:.0f} s")
            if "error" in answer:
                raise UserError(f"process {rank} could not write its part: {answer['error']}")
            found.append(answer)
        return found

    def _rotate(self, save: _Save) -> list[int]:
        return super()._rotate(save) if self.main else []


def _partial(save: _Save, entries: Mapping[str, FileEntry]) -> Manifest:
    """Return what this process knows of a checkpoint that rank 0 will finish."""
    return Manifest(run_key=step_name(save.step), step=save.step, created=0.0, world_size=1, files=dict(entries))
