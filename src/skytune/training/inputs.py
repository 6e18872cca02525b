"""What a worker reads before it computes: the splits, and the model, as a job directory names them."""

import inspect
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import models
from ..config import UserError
from ..data.batches import Padding, Ragged, TokenTable
from ..data.pixels import Augmentation, Pixels
from ..job import Job, JobDir
from ..tasks import Task

log = logging.getLogger(__name__)


def open_tables(jobdir: JobDir, job: Job) -> dict[str, TokenTable]:
    """Open every split of the job."""
    folders = {**({"train": job.train} if job.train else {}), **job.evaluation}
    padding = padding_of(jobdir, job)
    tables = {name: TokenTable.open(jobdir.root / folder, padding) for name, folder in folders.items()}
    if job.train and (images := tables["train"].images) is not None and not job.config.augment.is_off:
        images.augmentation = Augmentation(job.config.augment, job.config.seed, len(job.labels))
    return tables


def padding_of(jobdir: JobDir, job: Job) -> Padding:
    """Return how the job's tokenizer pads, or its image processor scales."""
    if not job.tokenizer:
        return Padding()
    if (jobdir.root / job.tokenizer / models.PROCESSOR).is_file():
        return padding_by(models.read_processor(str(jobdir.root / job.tokenizer)))
    return padding_by(models.read_tokenizer(str(jobdir.root / job.tokenizer)))


def padding_by(reader: Any) -> Padding:
    """Return how a tokenizer of transformers pads, or an image processor scales."""
    if not hasattr(reader, "pad_token_id"):
        return Padding(pixels=Pixels(reader))
    return Padding(
        int(reader.pad_token_id), reader.padding_side == "left", types="token_type_ids" in reader.model_input_names
    )


def open_model(jobdir: JobDir, job: Job, head: models.Head) -> torch.nn.Module:
    """Return the model that the job trains or predicts with, on the CPU; `head` is what its task asks of it."""
    weights = str(jobdir.root / job.weights) if job.weights else None
    tokenizer = str(jobdir.root / job.tokenizer) if job.tokenizer else None
    if tokenizer and (Path(tokenizer) / models.PROCESSOR).is_file():
        tokenizer = None
    if job.kind == "train":
        config = job.config.model
        if config.lora.adapter:
            config = replace(config, lora=replace(config.lora, adapter=str(jobdir.inputs / "adapter")))
        return _aligned(models.build_model(config, weights, job.labels, job.config.seed, tokenizer, head))
    found = models.read_tokenizer(tokenizer) if tokenizer else None
    return open_saved(weights or job.config.checkpoint.path or "", job.config.model._target_, found)


def open_saved(folder: str, target: str | None, tokenizer: Any = None) -> torch.nn.Module:
    """Return the trained model in a folder, on the CPU, as it predicts with this tokenizer; see `models.load_saved`."""
    model = models.load_saved(Path(folder), target)
    if hasattr(tokenizer, "pad_token_id") and hasattr(getattr(model, "config", None), "get_text_config"):
        models.agree_on_padding(tokenizer, model.config)
    return _aligned(model)


def _aligned(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model with its weights on whole cache lines, where torch itself puts them.

    Weights that are mapped from a file start where the file has them. A CPU's matrix kernels take other ways for other
    alignments, and transformers maps or copies depending on the number of processes: the last bits of the logits would
    depend on it (seen: 1e-7).
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % 64:
            tensor.data = tensor.data.clone()
    return model


def check_vocabulary(model: torch.nn.Module, tables: dict[str, TokenTable]) -> None:
    """Refuse ids, types and positions that the model has no embedding for, in any row; on a GPU they would end in an
    unreadable assertion."""
    try:
        size = int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError, TypeError):
        return
    types = getattr(getattr(model, "config", None), "type_vocab_size", None)
    places = _places(model)
    for name, table in tables.items():
        if table.largest() >= size:
            raise UserError(
                f"the tokenizer does not fit the model: split '{name}' has token id {table.largest()}, "
                f"the model knows {size}; use the model's own tokenizer (model.tokenizer=null)"
            )
        if types and table.largest("token_type_ids") >= types:
            raise UserError(
                f"the tokenizer does not fit the model: split '{name}' has token type "
                f"{table.largest('token_type_ids')}, the model knows {types}; use the model's own tokenizer "
                "(model.tokenizer=null)"
            )
        if places and (longest := int(table.lengths.max(initial=0))) > places:
            raise UserError(
                f"split '{name}' has a row of {longest} tokens, the model takes {places}: data.max_length="
                f"{places} cuts texts there"
            )


def _places(model: torch.nn.Module) -> int | None:
    """Return how many tokens a model has embeddings of places for, None where it has none that are known."""
    named = [m for name, m in model.named_modules() if name.endswith(("position_embeddings", ".wpe"))]
    found = [m for m in named if isinstance(m, torch.nn.Embedding)]
    return min((m.num_embeddings - (0 if m.padding_idx is None else m.padding_idx + 1) for m in found), default=None)


def widest(model: torch.nn.Module) -> int | None:
    """Return how many tokens a model has places for at least, None where it does not say."""
    declared = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    known = [count for count in (_places(model), declared) if isinstance(count, int) and count > 0]
    return min(known, default=None)


def fit_columns(model: torch.nn.Module, tables: dict[str, TokenTable], say: bool = True) -> None:
    """Leave out of the tables what the model's forward does not take; with `say`, tell what that is.

    Raises:
        UserError: it takes no labels, or needs what the rows do not have.
    """
    parameters = inspect.signature(model.forward).parameters.values()
    named = {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    # Models of transformers hand further arguments on to kernels that look at none of them.
    own = not type(model).__module__.startswith("transformers.")
    anything = own and any(p.kind is p.VAR_KEYWORD for p in parameters)
    needed = {p.name for p in parameters if p.name in named and p.default is p.empty}
    kind = type(model).__name__
    if "labels" in needed:
        raise UserError(f"{kind}.forward must do without labels too (labels=None): a prediction has none")
    usual = {"attention_mask": 1, "token_type_ids": 0}
    for split, table in tables.items():
        lacking = sorted(needed - table.columns.keys())
        if lacking:
            has = ", ".join(table.columns)
            raise UserError(f"{kind}.forward needs {lacking[0]}, which the rows of '{split}' do not have ({has})")
        if anything:
            if "token_type_ids" not in named and not table.largest("token_type_ids"):
                del table.columns["token_type_ids"]  # zeros, which a forward that hands all on may not expect
            continue
        if split == "train" and "labels" not in named:
            raise UserError(f"{kind}.forward takes no labels; with labels it must return loss and logits")
        for name in sorted(table.columns.keys() - named - {"labels"}):
            if say and (name not in usual or (table.columns[name].values != usual[name]).any()):
                log.info("%s.forward takes no %s: this column of '%s' is left out", kind, name, split)
            del table.columns[name]


def targets_of(table: TokenTable, split: str) -> np.ndarray | Ragged:
    """Return what is learned from every row of a split.

    Raises:
        UserError: the split has none.
    """
    if not isinstance(table.targets, np.ndarray | Ragged):
        raise UserError(f"the split '{split}' has no column 'labels' of numbers")
    return table.targets


def units_of(task: Task, table: TokenTable) -> np.ndarray | None:
    """Return how often each row of the train split counts in the loss; None: once each.

    Raises:
        UserError: a row does not count at all.
    """
    units = task.weigh(table)
    if units is not None and (units < 1).any():
        row = int(np.argmax(units < 1))
        raise UserError(f"row {row + 1} of the train split has nothing that counts in the loss")
    return units
