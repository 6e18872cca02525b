"""Step `load_data`: the splits and the tokenizer."""

import json
import logging
from typing import Annotated, Any

from zenml import log_metadata, step

from ..config import DataConfig, ModelConfig, TaskConfig, from_dict
from ..config.scrubbing import scrubbed
from .types import Dataset, Datasets, Texts, Tokenizer

log = logging.getLogger(__name__)


@step
def load_data(
    data: dict[str, Any],
    model: dict[str, Any],
    sets: dict[str, str],
    seed: int,
    task: dict[str, Any],
    fingerprints: dict[str, str],
    classes: list[str] | None = None,
) -> tuple[
    Annotated[Dataset, "train_dataset"],
    Annotated[Datasets, "validation_dataset"],
    Annotated[Dataset, "test_dataset"],
    Annotated[Tokenizer, "tokenizer"],
    Annotated[Texts, "texts"],
]:
    """Read, split and tokenize the data, for a model of these classes; `fingerprints` is there for the cache alone.

    With further evaluation sets `validation_dataset` is a DatasetDict: `validation` first, then they by name (Hugging
    Face's Trainer takes that as its `eval_dataset`). `texts` has the own texts of what is scored, for the report.
    """
    source = data["name"] if data["source"] != "files" else data["train"]
    log.info("load_data: reading and tokenizing %s", source if data["train"] else data["test"])
    from datasets import DatasetDict

    from ..data import prepare
    from ..tasks import chosen

    with scrubbed():  # ZenML keeps the text of an error
        source, network = from_dict(DataConfig, data), from_dict(ModelConfig, model)
        what = chosen(from_dict(TaskConfig, task), source, network)
        found = prepare(source, network, seed, sets, classes, what)
    log_metadata({"data": json.loads(json.dumps(found.notes))}, artifact_name="train_dataset", infer_artifact=True)
    named = {"validation": found.validation, **found.sets} if found.validation is not None else found.sets
    validation = DatasetDict(named) if found.sets else found.validation
    texts = DatasetDict(found.texts) if found.texts else None
    return found.train, validation, found.test, found.tokenizer, texts
