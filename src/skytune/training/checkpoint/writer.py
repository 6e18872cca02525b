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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import UserError
from .manifest import Manifest, step_name
from .stage import Source
from .store import Store

if TYPE_CHECKING:
    import torch

    from .lease import Lease

log = logging.getLogger(__name__)

Tensors = Mapping[str, Mapping[str, "torch.Tensor"]]


@dataclass(frozen=True, kw_only=True)
class Saved:
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
class Failed:
    """A checkpoint that could not be written; what was there before is intact."""

    step: int
    message: str
    seconds: float
    skipped: bool = False
    """It was not tried, because the save before it was still running."""


Event = Saved | Failed


@dataclass(kw_only=True)
class _Save:
    step: int
    tensors: dict[str, dict[str, "torch.Tensor"]]
    documents: dict[str, bytes]
    arguments: dict[str, Any]
    best: int | None
    started: float
    stall: float = 0.0
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
            max_wait_seconds: how long `submit` waits for the save before it, then it skips this one and says so;
                0 never waits.
            decisive: what decides the run's result, for the manifest.
            lease: checked before every save.
        """
        self.store, self.keep, self.max_wait, self.lease = store, keep, max_wait_seconds, lease
        self.common: dict[str, Any] = {"decisive": dict(decisive or {}), "world_size": world_size}
        self.last: Event | None = None
        """What became of the save that ended last; a `Failed` here at the end means that the last save failed."""
        self._events: list[Event] = []
        self._buffers: dict[tuple[str, str], torch.Tensor] = {}
        self._current: _Save | None = None

    def prepare(self, tensors: Tensors) -> None:
        """Make the host buffers that `submit` copies into (page-locking memory is slow, once); optional."""
        for file, named in tensors.items():
            for name, tensor in named.items():
                self._buffer((file, name), tensor)

    def submit(
        self,
        step: int,
        tensors: Tensors,
        state: Mapping[str, Any],
        *,
        documents: Mapping[str, Any] | None = None,
        best: int | None = None,
        wait: bool = False,
    ) -> float:
        """Copy everything and write it in the background; return the seconds that the caller was held up.

        Args:
            tensors: tensors by name, by file; on any device; free to change when this returns.
            state: small JSON for the manifest.
            documents: further JSON files, by name without ending.
            best: step of the checkpoint that rotation must keep.
            wait: come back only when it is written (or failed).
        """
        started = time.perf_counter()
        if not self._wait(None if self.max_wait == float("inf") else self.max_wait):
            spent = time.perf_counter() - started
            message = "skipped: the save before it is still running"
            self._report(Failed(step=step, message=message, seconds=spent, skipped=True))
            return spent
        save = _Save(
            step=step, tensors=self._copy(tensors), best=best, started=started,
            documents={name: json.dumps(value).encode() for name, value in (documents or {}).items()},
            arguments={**self.common, "state": json.loads(json.dumps(state))},
        )  # fmt: skip
        save.stall = time.perf_counter() - started
        self._current = save
        threading.Thread(target=self._run, args=(save,), daemon=True, name=f"save-{step_name(step)}").start()
        if wait:
            save.done.wait()
            return time.perf_counter() - started
        return save.stall

    def poll(self) -> list[Event]:
        """Return what became of saves since the last call, oldest first."""
        events, self._events = self._events, []
        return events

    @property
    def busy(self) -> bool:
        """Whether a save is running."""
        return self._current is not None and not self._current.done.is_set()

    def close(self, timeout: float | None = None) -> list[Event]:
        """Wait for the running save and return what is left to report; one that takes too long counts as failed."""
        if not self._wait(timeout) and self._current is not None:
            spent = time.perf_counter() - self._current.started
            self._report(Failed(step=self._current.step, message=f"not finished after {spent:.0f} s", seconds=spent))
        return self.poll()

    def _wait(self, timeout: float | None) -> bool:
        return self._current is None or self._current.done.wait(timeout)

    def _report(self, event: Event) -> None:
        self.last = event
        self._events = [*self._events, event]

    def _buffer(self, key: tuple[str, str], tensor: "torch.Tensor") -> "torch.Tensor":
        import torch

        buffer = self._buffers.get(key)
        if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
            pinned = tensor.device.type == "cuda"
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
            self._buffers[key] = buffer
        return buffer

    def _copy(self, tensors: Tensors) -> dict[str, dict[str, "torch.Tensor"]]:
        """Copy to the host. Every tensor gets memory of its own, which tied weights in a safetensors file need."""
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

    def _run(self, save: _Save) -> None:
        event: Event
        try:
            if self.lease is not None:
                self.lease.check()
            event = self._saved(save, self._write(save))
        except BaseException as error:
            if not isinstance(error, UserError):
                log.exception("saving step %d", save.step)
            message = str(error) or type(error).__name__
            event = Failed(step=save.step, message=message, seconds=time.perf_counter() - save.started)
        self._report(event)
        save.tensors.clear()
        save.done.set()

    def _write(self, save: _Save) -> Manifest:
        files: dict[str, Source] = {f"{name}.safetensors": saver(named) for name, named in save.tensors.items()}
        files.update({f"{name}.json": data for name, data in save.documents.items()})
        return self.store.write(save.step, files, **save.arguments)

    def _rotate(self, save: _Save) -> list[int]:
        return self.store.rotate(self.keep, newest=save.step, best=save.best)

    def _saved(self, save: _Save, manifest: Manifest) -> Saved:
        seconds, rotated, warning = time.perf_counter() - save.started, [], ""
        try:
            rotated = self._rotate(save)
        except UserError as error:
            warning = str(error)
        return Saved(
            step=save.step, location=f"{self.store.location}/{step_name(save.step)}", bytes=manifest.bytes,
            seconds=seconds, stall_seconds=save.stall, rotated=tuple(rotated), warning=warning,
        )  # fmt: skip


def saver(tensors: Mapping[str, "torch.Tensor"]) -> Callable[[Path], None]:
    """Return a function that writes tensors as a safetensors file."""

    def save(path: Path) -> None:
        from safetensors.torch import save_file

        save_file(dict(tensors), path)

    return save
