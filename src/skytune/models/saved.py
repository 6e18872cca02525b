"""A trained model as a folder: safetensors, JSON and the tokenizer's files; nothing that can run code when read."""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..common.files import replacing_folder
from ..common.json import load_json
from ..common.text import first_line
from ..config import UserError
from ..config.secrets import check_secret_names
from ..config.targets import instantiate
from ..job import write_json
from .classes import own_classes, sizes_offered
from .formats import is_adapter, original_config
from .head import auto_of
from .lora import has_adapter, load_adapted, merge, write_adapter
from .processor import PROCESSOR
from .quiet import quiet
from .source import fetch, load_weights, model_files

if TYPE_CHECKING:
    import torch

TARGET_FILE = "skytune_model.json"
"""How to make a module that came from `_target_`: import path, arguments, labels."""

WEIGHTS = "model.safetensors"

Folder = str | os.PathLike[str]


@dataclass(frozen=True)
class SavedModel:
    """What a folder with a trained model holds."""

    folder: str
    """The local folder (of a Hub id, the downloaded copy)."""

    labels: list[str]
    """Class names in the order of their numbers."""

    target: str | None
    """Import path of a module of the user's own; None for a Hugging Face model."""

    tokenizer: bool
    """Whether the tokenizer, or the image processor, lies beside the weights."""

    auto: str | None = None
    """Class of transformers that loads it, one of `head.KINDS`."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Its config.json."""


def save_model(model: Any, folder: Folder, tokenizer_folder: Folder | None = None) -> None:
    """Write a model, and the files of its tokenizer, into `folder`, all or nothing.

    A Hugging Face model becomes what `transformers.pipeline("text-classification", model=folder)` loads. Any other
    module made by `build_model` becomes `model.safetensors` and `skytune_model.json`.

    Args:
        model: the module itself, not a wrapper (DDP, compiled).
        folder: is replaced if it exists.
        tokenizer_folder: its files are copied.

    Raises:
        UserError: the disk is full or the folder cannot be written; a module that `build_model` did not make.
    """
    from safetensors import SafetensorError

    final = Path(folder).absolute()
    try:
        with replacing_folder(final) as part:
            if tokenizer_folder is not None:
                shutil.copytree(tokenizer_folder, part, dirs_exist_ok=True, copy_function=shutil.copyfile)
            _write(model, part)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"cannot write the model to {final}: {reason}; nothing was left there") from error


def merge_adapter(checkpoint: Folder, into: Folder) -> None:
    """Write the plain model that an adapter and its base make together, with the adapter's tokenizer.

    Raises:
        UserError: there is no adapter, or what `load_saved` raises.
    """
    folder = Path(saved_model(checkpoint).folder)
    if not is_adapter(folder):
        raise UserError(f"checkpoint={checkpoint}: holds a whole model, no adapter: there is nothing to merge")
    with tempfile.TemporaryDirectory() as beside:
        for file in model_files(folder):
            if not file.name.startswith(("adapter_", "skytune_")):
                shutil.copyfile(file, Path(beside, file.name))
        save_model(merge(load_adapted(folder)), into, beside)


def saved_model(folder: Folder, key: str = "checkpoint") -> SavedModel:
    """Look at a trained model without loading its weights.

    Args:
        folder: as `save_model` left it, or any Hugging Face classifier: a folder or a Hub id.
        key: configuration key that the folder came from, for the message.

    Raises:
        UserError: no trained classifier there.
        NotReachable: a Hub id, and the Hub does not answer.
    """
    path = Path(folder).expanduser()
    if (path / TARGET_FILE).is_file():
        spec = _read_spec(path)
        return SavedModel(str(path.absolute()), spec["labels"], spec["target"], _has_tokenizer(path))
    found = Path(fetch(str(folder), weights=True, key=key))
    try:
        values = original_config(found) if is_adapter(found) else load_json((found / "config.json").read_bytes(), dict)
        auto = auto_of(values.get("architectures"))
        labels = own_classes(values.get("id2label")) or ["0", "1"]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{key}={folder}: its config.json is damaged: {first_line(error)}") from error
    if auto is None:
        raise UserError(f"{key}={folder}: holds no trained classifier (its config.json names none); train it first")
    return SavedModel(str(found), labels, None, _has_tokenizer(found), auto, values)


def load_saved(folder: Folder, target: str | None = None) -> Any:
    """Return the trained model in a folder (or of a Hub id) as an `nn.Module` on the CPU, in float32, in eval mode.

    Args:
        target: import path that the folder may have called; the folder alone has nothing called.

    Raises:
        UserError: no trained classifier there, or one of another target; weights that are missing or do not fit: a
            head that is drawn at random must not be scored.
    """
    info = saved_model(folder)
    if is_adapter(Path(info.folder)):
        return load_adapted(Path(info.folder)).eval()
    if info.target is None:
        return _load_transformers(info)
    if info.target != target:
        raise UserError(
            f"{info.folder}: its {TARGET_FILE} wants {info.target} called, and a folder alone has nothing called: "
            f"target='{info.target}' allows it here; on the command line plugins=[{info.target.partition('.')[0]}] or "
            "trust=true"
        )
    return _load_target(info)


def _write(model: Any, folder: Path) -> None:
    from safetensors.torch import save_model as save_tensors

    spec = getattr(model, "skytune_target", None)
    if has_adapter(model):
        write_adapter(model, folder)
        return
    if hasattr(model, "save_pretrained") and type(model).__module__.startswith("transformers."):
        with quiet("transformers"), _not_wrapped():
            model.save_pretrained(folder)
        return
    if spec is None:
        raise UserError(f"{type(model).__name__} was not made from model._target_, so nobody could load it again")
    # It asks a model for nothing but its tensors.
    apart: Any = SimpleNamespace(state_dict=lambda: _apart(model.state_dict()))
    save_tensors(apart, str(folder / WEIGHTS), metadata={"format": "pt"})
    write_json(folder / TARGET_FILE, spec)


@contextlib.contextmanager
def _not_wrapped() -> Iterator[None]:
    """Have Accelerate not import DeepSpeed, which takes a third of a second and writes to the terminal, to see whether
    a model is wrapped in its engine: where nobody has imported it, none is."""
    import accelerate.utils.other as asked

    before = asked.is_deepspeed_available
    if "deepspeed" not in sys.modules:
        asked.is_deepspeed_available = lambda: False
    try:
        yield
    finally:
        asked.is_deepspeed_available = before


def _apart(tensors: "Mapping[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return a model's tensors; those that are parts of one buffer, as an optimizer or cuDNN may have put them, as
    copies in the host's memory, which safetensors asks for. Names of one tensor (tied weights) stay names of one."""

    def place(tensor: "torch.Tensor") -> tuple[Any, ...]:
        return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()

    def buffer(tensor: "torch.Tensor") -> tuple[Any, ...]:
        return tensor.device, tensor.untyped_storage().data_ptr()

    whole = {buffer(tensor) for tensor in tensors.values() if tensor.nbytes == tensor.untyped_storage().nbytes()}
    parts = {place(tensor): tensor for tensor in tensors.values() if buffer(tensor) not in whole}
    copies = {where: tensor.detach().to("cpu", copy=True) for where, tensor in parts.items()}
    return {name: copies.get(place(tensor), tensor) for name, tensor in tensors.items()}


def _load_target(info: SavedModel) -> Any:
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_model as load_tensors

    spec = _read_spec(Path(info.folder))
    check_secret_names(spec["args"], f"{info.folder}/{TARGET_FILE}: args")
    offered = sizes_offered(info.labels, spec.get("vocab_size"))
    model = instantiate(str(info.target), spec["args"], offered=offered, key="model._target_")
    if not isinstance(model, torch.nn.Module):
        raise UserError(f"{info.target} no longer returns a torch.nn.Module but {type(model).__name__}")
    try:
        load_tensors(model, str(Path(info.folder) / WEIGHTS))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise UserError(f"the weights in {info.folder} do not fit {info.target}: {first_line(error)}") from error
    model.skytune_target = spec
    return model.eval()


def _read_spec(folder: Path) -> dict[str, Any]:
    """Return what `skytune_model.json` holds: `target`, `args`, `labels`, `vocab_size`.

    Raises:
        UserError: it is damaged.
    """
    file = folder / TARGET_FILE
    try:
        spec: dict[str, Any] = load_json(file.read_bytes(), dict)
        kinds = {"target": str, "args": dict, "labels": list, "vocab_size": int | None}
        if all(isinstance(spec.get(key), kind) for key, kind in kinds.items()) and spec["target"]:
            return {**spec, "labels": [str(name) for name in spec["labels"]]}
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read: {first_line(error)}") from error
    raise UserError(f"{file}: is damaged: it must hold {', '.join(kinds)}")


def _load_transformers(info: SavedModel) -> Any:
    try:
        model, found = load_weights(info.folder, str(info.auto))
    except Exception as error:
        raise UserError(f"cannot load the model in {info.folder}: {first_line(error)}") from error
    lacking = sorted(found["missing_keys"])
    if lacking:
        raise UserError(f"the model in {info.folder} is incomplete: {lacking[0]} is missing ({len(lacking)} in all)")
    return model.eval()


def _has_tokenizer(folder: Path) -> bool:
    return any(
        (folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", PROCESSOR)
    )
