"""From the files of a checkpoint back to what was saved in it."""

import fcntl
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config import UserError
from .optimizer import state_names
from .shards import INDEX, Stored
from .store import Found, Store

if TYPE_CHECKING:
    import torch


def open_tensors(found: Found, name: str) -> Stored:
    """Return the tensors of `<name>`, read as they are asked for, whether one file holds them or one a process."""
    if f"{name}.safetensors" in found.files:
        return Stored.whole(found.files[f"{name}.safetensors"])
    index = load_document(found, INDEX) if f"{INDEX}.json" in found.files else {}
    if name not in index and _has_none(found, name):
        return Stored({}, {})
    if name not in index:
        raise UserError(f"{found.location}: holds no {name}.safetensors")
    return Stored(found.files, index[name])


def fetch(store: Store, step: int, folder: Path) -> Found:
    """Return one checkpoint with its files on this machine: where they lie, or in `folder` (a subfolder of its step).

    All processes of a machine may ask at once and for the same folder: the first one reads what is missing from the
    store, the others wait for it and then check the files for themselves.

    Raises:
        UserError: the checkpoint is not there, or not valid.
    """
    if store.backend.local("") is not None:
        return store.get(step)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
        except OSError:
            pass  # a file system without locks: every process reads for itself, and files appear as a whole
        return store.get(step, into=folder, reuse=True)


def load_tensors(found: Found, name: str) -> dict[str, "torch.Tensor"]:
    """Return all tensors of `<name>`, whole, on the CPU."""
    return dict(open_tensors(found, name))


def load_document(found: Found, name: str) -> Any:
    """Return the content of `<name>.json`."""
    return json.loads(_file(found, f"{name}.json").read_bytes())


def _has_none(found: Found, name: str) -> bool:
    """Whether this is an optimizer without tensors: earlier versions left those out of the index."""
    return name == "optimizer" and f"{name}.json" in found.files and not state_names(load_document(found, name))


def _file(found: Found, name: str) -> Path:
    if name not in found.files:
        raise UserError(f"{found.location}: holds no {name}")
    return found.files[name]
