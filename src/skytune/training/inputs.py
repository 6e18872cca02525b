"""What a worker reads before it computes: the splits, and the model, as a job directory names them."""

from pathlib import Path

import numpy as np
import torch

from ..config import UserError
from ..data.batches import TokenTable
from ..job import Job, JobDir


def open_tables(jobdir: JobDir, job: Job) -> dict[str, TokenTable]:
    """Open every split of the job."""
    pad = _pad_id(jobdir, job)
    folders = {**({"train": job.train} if job.train else {}), **job.evaluation}
    return {name: TokenTable.open(jobdir.root / folder, pad) for name, folder in folders.items()}


def _pad_id(jobdir: JobDir, job: Job) -> int:
    """Return the tokenizer's padding id; 0 where there is no tokenizer, or one without padding."""
    if not job.tokenizer:
        return 0
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(jobdir.root / job.tokenizer, trust_remote_code=False).pad_token_id
    return 0 if found is None else int(found)


def open_model(jobdir: JobDir, job: Job) -> torch.nn.Module:
    """Return the model that the job trains or predicts with, on the CPU."""
    from .. import models

    weights = str(jobdir.root / job.weights) if job.weights else None
    if job.kind == "predict":
        folder = Path(weights or job.config.checkpoint.path or "")
        return _aligned(models.load_saved(folder, job.config.model._target_))
    tokenizer = str(jobdir.root / job.tokenizer) if job.tokenizer else None
    return _aligned(models.build_model(job.config.model, weights, job.labels, job.config.seed, tokenizer))


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
    """Refuse token ids that the model has no embedding for; on a GPU they would end in an unreadable assertion."""
    try:
        size = int(model.get_input_embeddings().num_embeddings)
    except (AttributeError, NotImplementedError, TypeError):
        return
    for name, table in tables.items():
        if table.largest_id() >= size:
            raise UserError(
                f"the tokenizer does not fit the model: split '{name}' has token id {table.largest_id()}, "
                f"the model knows {size}; use the model's own tokenizer (model.tokenizer=null)"
            )


def labels_of(table: TokenTable, split: str) -> np.ndarray:
    """Return the class number of every row of a split.

    Raises:
        UserError: the split has none.
    """
    if table.labels is None:
        raise UserError(f"the split '{split}' has no column 'labels' with one whole number a row")
    return table.labels
