"""Trained models of every task that is served, and rows for them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def texts(sentences: Callable[..., list[tuple[str, int]]]) -> Callable[..., list[str]]:
    """Return a maker of texts of varying length."""
    return lambda rows, seed=0: [text for text, _ in sentences(rows, seed)]


@pytest.fixture(scope="session")
def saved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a maker of models with heads that are drawn at random, by task."""
    made: dict[str, Path] = {}

    def make(task: str) -> Path:
        import torch
        import transformers
        from transformers import AutoTokenizer, BertConfig

        if task in made:
            return made[task]
        names = {"token-classification": ["O", "B-up", "I-up"], "regression": ["mood"]}.get(
            task, ["low", "even", "high"]
        )
        config = BertConfig.from_pretrained(tiny_model)
        config.id2label, config.label2id = dict(enumerate(names)), {name: place for place, name in enumerate(names)}
        kinds = {"multi-label": "multi_label_classification", "regression": "regression"}
        kind = "TokenClassification" if task == "token-classification" else "SequenceClassification"
        if kind == "SequenceClassification":
            config.problem_type = kinds.get(task, "single_label_classification")
        torch.manual_seed(5)
        model = getattr(transformers, f"BertFor{kind}")(config)
        torch.nn.init.normal_(model.classifier.weight)
        made[task] = tmp_path_factory.mktemp("served") / task
        model.save_pretrained(made[task])
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(made[task])
        return made[task]

    return make


@pytest.fixture(scope="session")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[list[float]]]:
    """Return a function that computes the logits of rows as `pipeline=evaluate` does, with labels in a file."""

    def compute(task: str, model: Path, rows: list[Any], pairs: list[str] | None = None) -> list[list[float]]:
        import numpy as np

        from skytune import models
        from skytune.config import RunConfig, from_dict
        from skytune.data.batches import TokenTable
        from skytune.distributed.context import join
        from skytune.pipelines.validation import validated
        from skytune.tasks import Scoring, find_task
        from skytune.tasks.prepared import prepared
        from skytune.training.inputs import fit_columns, open_saved, padding_by, widest
        from skytune.training.prediction import predict

        labels: dict[str, Callable[[Any], Any]] = {
            "token-classification": lambda row: ["O"] * len(row),
            "regression": lambda row: 0.5,
            "multi-label": lambda row: "low;high",
        }
        file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
        lines = []
        for number, row in enumerate(rows):
            line = {"text": row, "label": labels.get(task, lambda row, n=number: ["low", "even"][n % 2])(row)}
            lines.append(json.dumps({**line, **({"other": pairs[number]} if pairs else {})}) + "\n")
        file.write_text("".join(lines))
        data = {"source": "files", "test": str(file), **({"text_pair": "other"} if pairs else {})}
        values = {
            "pipeline": "evaluate",
            "checkpoint": {"path": str(model)},
            "data": data,
            "compute": {"device": "cpu"},
        }
        config = validated(from_dict(RunConfig, values))
        found = prepared(config, 0, models.saved_model(model).labels)
        table = TokenTable(found.test.with_format("arrow")[:], padding_by(found.tokenizer))
        network = open_saved(str(model), None, found.tokenizer)
        fit_columns(network, {"test": table})
        table.widest = widest(network)
        task_ = find_task(config.task)
        collect = task_.collector(task_.model(config, found.labels, None))
        _, logits = predict(network, table, join(config, 1)[1], collect, batch_size=32)
        assert Scoring.of(config.eval, found.labels).names == found.labels
        return [part.tolist() for part in np.split(logits.values, logits.offsets[1:-1])]

    return compute
