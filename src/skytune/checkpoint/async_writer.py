"""Saving while training goes on: the loop pays for a copy to the host's memory, a thread of its own does the rest.

    writer = Writer(store, keep=2)
    stall = writer.submit(step, {"model": weights, "optimizer": tensors}, documents={"optimizer": values}, state={...})
    for event in writer.poll(): ...        # what became of earlier saves
    writer.close(timeout=60)

Tensors `{"model": ...}` become `model.safetensors`, documents `{"optimizer": ...}` become `optimizer.json`.
"""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import UserError
from .manifest import Manifest, step_name
from .retry import causes, transient
from .store import Source, Store, rotate

if TYPE_CHECKING:
    import torch

    from .lease import Lease

log = logging.getLogger(__name__)

Tensors = Mapping[str, Mapping[str, "torch.Tensor"]]
"""Tensors by name, by the file that takes them."""


@dataclass(frozen=True, kw_only=True)
class SaveSucceeded:
    """A checkpoint that is complete."""

    step: int
    location: str
    bytes: int
    seconds: float
    """From the submission until the manifest was written."""

    stall_seconds: float
    """What the training loop paid."""

    rotated: tuple[int, ...] = ()
    """Steps whose checkpoints were deleted for it."""

    warning: str = ""
    """Old checkpoints could not be deleted."""


@dataclass(frozen=True, kw_only=True)
class SaveFailed:
    """A checkpoint that could not be written; what was there before is intact."""

    step: int
    message: str
    seconds: float
    skipped: bool = False
    """It was not tried, because the save before it was still running."""

    lost: bool = False
    """Another launch has taken the run over: this process saves no more."""


Event = SaveSucceeded | SaveFailed


@dataclass(kw_only=True)
class _Save:
    step: int
    tensors: dict[str, dict[str, "torch.Tensor"]]
    documents: dict[str, bytes]
    arguments: dict[str, Any]
    best: tuple[int, ...]
    started: float
    stall: float = 0.0
    waited: float = 0.0
    """Seconds that later saves have held the caller up for this one."""
    done: threading.Event = field(default_factory=threading.Event)


class Writer:
    """Writes one checkpoint at a time in a thread; its failures are reported, never raised into the loop."""

    def __init__(
        self,
        store: Store,
        *,
        keep: int = 2,
        max_wait_seconds: float = float("inf"),
        decisive: Mapping[str, Any] | None = None,
        world_size: int = 1,
        lease: "Lease | None" = None,
    ) -> None:
        """Begin.

        Args:
            keep: checkpoints that rotation leaves, beside the best one.
            max_wait_seconds: how long all calls of `submit` together wait for one running save; after that they skip
                theirs and say so; 0 never waits.
            decisive: what decides the run's result, for the manifest.
            lease: checked before every save.
        """
        self.store, self.keep, self.max_wait, self.lease = store, keep, max_wait_seconds, lease
        self.common: dict[str, Any] = {"decisive": dict(decisive or {}), "world_size": world_size}
        self.last: Event | None = None
        """What became of the save that ended last; a `SaveFailed` here at the end means that the last save failed."""
        self._events: deque[Event] = deque()
        self._copies = Copies()
        self._current: _Save | None = None

    def prepare(self, tensors: Tensors) -> None:
        """Make the host buffers that `submit` copies into (page-locking memory is slow, once); optional.

        Raises:
            UserError: a file would be larger than the store takes.
        """
        largest = self.store.backend.largest_file
        for file, named in tensors.items():
            size = sum(tensor.nbytes for tensor in named.values())
            if largest is not None and size > largest:
                raise UserError(
                    f"{self.store.location}: {file}.safetensors would have {size / 1e9:.0f} GB, and files may have "
                    f"{largest / 1e9:.0f} GB there; use another checkpoint.store (a folder or s3://)"
                )
        self._copies.prepare(tensors)

    def submit(
        self,
        step: int,
        tensors: Tensors,
        state: Mapping[str, Any],
        *,
        documents: Mapping[str, Any] | None = None,
        best: Sequence[int] = (),
        wait: bool = False,
        must: bool = False,
    ) -> float:
        """Copy everything and write it in the background; return the seconds that the caller was held up.

        Args:
            tensors: tensors by name, by file; on any device; free to change when this returns.
            state: small JSON for the manifest.
            documents: further JSON files, by name without ending.
            best: steps whose checkpoints rotation must keep, of which it keeps the first that is complete.
            wait: come back only when it is written (or failed).
            must: never skip this one.
        """
        started = time.perf_counter()
        if not self.ready(must=must or wait):
            return self.skip(step, started)
        save = _Save(
            step=step,
            tensors=self._copies.take(tensors),
            best=tuple(best),
            started=started,
            documents={name: json.dumps(value).encode() for name, value in (documents or {}).items()},
            arguments={**self.common, "state": json.loads(json.dumps(state))},
        )
        save.stall = time.perf_counter() - started
        self._current = save
        threading.Thread(target=self._run, args=(save,), daemon=True, name=f"save-{step_name(step)}").start()
        if wait:
            save.done.wait()
            return time.perf_counter() - started
        return save.stall

    def poll(self) -> list[Event]:
        """Return what became of saves since the last call, oldest first."""
        return [self._events.popleft() for _ in range(len(self._events))]

    @property
    def busy(self) -> bool:
        """Whether a save is running."""
        return self._current is not None and not self._current.done.is_set()

    def close(self, timeout: float | None = None) -> list[Event]:
        """Wait for the running save and return what is left to report; one that takes too long counts as failed."""
        if not self.wait(timeout) and self._current is not None:
            spent = time.perf_counter() - self._current.started
            self._report(
                SaveFailed(step=self._current.step, message=f"not finished after {spent:.0f} s", seconds=spent)
            )
        return self.poll()

    def skip(self, step: int, started: float) -> float:
        """Report that a step is not saved because the save before it still runs; return the seconds since `started`."""
        spent, message = time.perf_counter() - started, "skipped: another process is still saving"
        if self._current is not None and not self._current.done.is_set():
            running = time.perf_counter() - self._current.started
            message = f"skipped: the save of step {self._current.step} is still running after {running:.0f} s"
        self._report(SaveFailed(step=step, message=message, seconds=spent, skipped=True))
        return spent

    def ready(self, *, must: bool = False) -> bool:
        """Wait until the running save is done; return False where it is not, and its callers have waited enough.

        Args:
            must: wait however long it takes.
        """
        current = self._current
        if current is None or current.done.is_set():
            return True
        begun = time.perf_counter()
        left = None if must or self.max_wait == float("inf") else max(0.0, self.max_wait - current.waited)
        done = current.done.wait(left)
        current.waited += time.perf_counter() - begun
        return done

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the running save; return whether none is running any more."""
        return self._current is None or self._current.done.wait(timeout)

    def _report(self, event: Event) -> None:
        self.last = event
        self._events.append(event)  # in one move, as `popleft` is: both threads come here

    def _run(self, save: _Save) -> None:
        event: Event
        try:
            if self.lease is not None:
                self.lease.check(look=True)
            event = self._saved(save, self._write(save))
        except BaseException as failure:
            error = self._cause(failure)
            if not isinstance(error, UserError):
                log.exception("saving step %d", save.step)
            message = str(error) or type(error).__name__
            lost = self.lease is not None and self.lease.lost is not None
            event = SaveFailed(step=save.step, message=message, seconds=time.perf_counter() - save.started, lost=lost)
        self._report(event)
        save.tensors.clear()
        save.done.set()

    def _cause(self, error: BaseException) -> BaseException:
        """Return why a save failed: where another launch has taken over, it is that, whatever was met first (who takes
        over clears unfinished files away, and each library says it with an error of its own)."""
        if self.lease is None or any(transient(one) for one in causes(error)):
            return error  # a store that is away says nothing of the lease either, and was waited for already
        try:
            self.lease.check(look=True, quick=True)
        except UserError as taken:
            return taken if self.lease.lost is not None else error
        return error

    def _write(self, save: _Save) -> Manifest:
        files: dict[str, Source] = {f"{name}.safetensors": saver(named) for name, named in save.tensors.items()}
        files.update({f"{name}.json": data for name, data in save.documents.items()})
        return self.store.write(save.step, files, **save.arguments)

    def _rotate(self, save: _Save) -> list[int]:
        return rotate(self.store, self.keep, newest=save.step, best=save.best)

    def _saved(self, save: _Save, manifest: Manifest) -> SaveSucceeded:
        seconds, rotated, warning = time.perf_counter() - save.started, [], ""
        try:
            rotated = self._rotate(save)
        except UserError as error:
            warning = str(error)
        return SaveSucceeded(
            step=save.step,
            location=f"{self.store.location}/{step_name(save.step)}",
            bytes=manifest.bytes,
            seconds=seconds,
            stall_seconds=save.stall,
            rotated=tuple(rotated),
            warning=warning,
        )


class Copies:
    """Buffers on the host, made once: page-locked for a GPU's tensors, which are fast to copy to and slow to make."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}

    def prepare(self, tensors: Tensors) -> None:
        """Make the buffers that `take` will fill."""
        for file, named in tensors.items():
            for name, tensor in named.items():
                self._buffer((file, name), tensor)

    def take(self, tensors: Tensors) -> dict[str, dict[str, "torch.Tensor"]]:
        """Copy; the copies are good until the next call.

        Every tensor gets memory of its own, which tied weights in a safetensors file need.
        """
        import torch

        copied: dict[str, dict[str, torch.Tensor]] = {}
        devices: set[torch.device] = set()
        for file, named in tensors.items():
            copied[file] = {}
            for name, tensor in named.items():
                copied[file][name] = self._buffer((file, name), tensor).copy_(tensor.detach(), non_blocking=True)
                devices.add(tensor.device)
        for device in devices:
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()
            elif device.type == "mps":
                torch.mps.synchronize()
        return copied

    def _buffer(self, key: tuple[str, str], tensor: "torch.Tensor") -> "torch.Tensor":
        import torch

        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            self._buffers[key] = buffer
        return buffer


def saver(tensors: Mapping[str, "torch.Tensor"]) -> Callable[[Path], None]:
    """Return a function that writes tensors as a safetensors file."""

    def save(path: Path) -> None:
        from safetensors.torch import save_file

        save_file(dict(tensors), path)

    return save
