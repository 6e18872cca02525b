"""Job directories for `forked_workers`: laid out by the very code that launchers use, up to the start of the workers;
and what a run has left there."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any


class Laid(Exception):
    """The job directory is complete, up to the workers."""


class _Stop:
    def run(self, job: Any, compute: Any) -> None:
        raise Laid


@dataclass
class Place:
    """Where jobs are laid out: `lay("name", epochs=3, checkpoint={...})` returns a job directory."""

    home: Path
    model: Path
    rows: list[tuple[str, int]]
    words: dict[tuple[int, ...], int] = field(default_factory=dict)
    """Row number by tokens; no two rows are equal."""

    def lay(self, name: str, rows: int | None = None, **groups: Any) -> Path:
        from skytune.config import RunConfig, from_dict
        from skytune.launch import train

        values: dict[str, Any] = {
            "name": name,
            "model": {"name": str(self.model)},
            "compute": {"device": "cpu"},
            "epochs": 1,
            "launch": {"num_processes": 1, "threads": 1},
            "batch": {"global_size": 8},
            "log": {"every_steps": 1},
            "optimizer": {"lr": 1e-3},
            "eval": {"every_epochs": 0},
            "tracker": {"names": []},
            "callbacks": {"end": {"_target_": "worker_callbacks.End"}, "rows": {"_target_": "worker_callbacks.Rows"}},
        }
        groups["checkpoint"] = {
            "store": str(self.home / f"{name}-store"),
            "keep": 99,
            "select": "last",
            "every_minutes": 0.0,
            **groups.get("checkpoint", {}),
        }
        for key, value in groups.items():
            values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
        split, tokenizer = self._split(self.rows[: rows or len(self.rows)])
        self.words.update({tuple(row): number for number, row in enumerate(split.with_format(None)["input_ids"])})
        before, os.environ["SKYTUNE_HOME"] = os.environ.get("SKYTUNE_HOME"), str(self.home)
        try:
            train(from_dict(RunConfig, values), split, {"validation": split.select(range(8))}, tokenizer, None, _Stop())
        except Laid:
            pass
        finally:
            if before is None:
                del os.environ["SKYTUNE_HOME"]
            else:
                os.environ["SKYTUNE_HOME"] = before
        (folder,) = (path for path in (self.home / "runs").iterdir() if path.name.rpartition("-")[0] == name)
        return folder

    def _split(self, rows: list[tuple[str, int]]) -> tuple[Any, Any]:
        from datasets import ClassLabel, Dataset, Features, List, Value
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self.model)
        tokens = tokenizer([text for text, _ in rows], truncation=True)
        features = Features(
            input_ids=List(Value("int32")), attention_mask=List(Value("int8")), labels=ClassLabel(names=["no", "yes"])
        )
        columns = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
        return Dataset.from_dict({**columns, "labels": [label for _, label in rows]}, features=features), tokenizer

    def seen(self, job: Path) -> dict[int, list[int]]:
        """Return the row numbers that every step learned from, over all processes and all lives of a run; a step that
        was taken again must have got the same rows on as many processes."""
        steps: dict[int, dict[str, list[int]]] = {}
        for path in sorted(job.glob("seen-*.jsonl")):
            for record in map(json.loads, path.read_text().splitlines()):
                rows = [self.words[tuple(row)] for row in record["rows"]]
                before = steps.setdefault(record["step"], {}).setdefault(path.name, rows)
                assert rows == before, f"step {record['step']} got other rows when it was taken again"
        return {step: sorted(chain(*parts.values())) for step, parts in sorted(steps.items())}


def distinct(sentences: Callable[[int, int], list[tuple[str, int]]], rows: int) -> list[tuple[str, int]]:
    """Return so many rows, no two of them with the same words."""
    found = list({text: label for text, label in sentences(2 * rows, 3)}.items())
    assert len(found) >= rows
    return found[:rows]


def assert_permutations(seen: dict[int, list[int]], rows: int, steps_per_epoch: int) -> None:
    """Every epoch has seen every row once."""
    steps = sorted(seen)
    assert steps == list(range(1, len(steps) + 1)) and len(steps) % steps_per_epoch == 0
    for first in range(1, len(steps) + 1, steps_per_epoch):
        epoch = chain(*(seen[step] for step in range(first, first + steps_per_epoch)))
        assert sorted(epoch) == list(range(rows)), f"epoch from step {first}"


MEASURED = {"samples_per_s", "tokens_per_s", "elapsed_s", "mfu", "data_wait_share", "peak_memory_bytes"}
"""Values of a record that are another run's own."""


def records(job: Path) -> list[dict[str, Any]]:
    """Return all records, in their order, without what was measured."""
    found = [json.loads(line) for line in (job / "outputs" / "history.jsonl").read_text().splitlines()]
    return [{key: value for key, value in record.items() if key not in MEASURED} for record in found]


def history(job: Path) -> dict[int, dict[str, Any]]:
    """Return the records of all steps, without what was measured."""
    steps = [record for record in records(job) if record["kind"] == "step"]
    assert len({record["step"] for record in steps}) == len(steps)
    return {record["step"]: record for record in steps}


def result(job: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job / "outputs" / "result.json").read_text())
    return found


def weights(job: Path) -> dict[str, Any]:
    from safetensors.numpy import load_file

    return dict(load_file(job / "outputs" / "model" / "model.safetensors"))


def same(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two models are equal to the last bit."""
    import numpy as np

    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)
