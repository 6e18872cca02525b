"""One run as the worker leaves it: numbers like those of the default model on movie reviews."""

import math
from typing import Any

import numpy as np
import pytest

from skytune.config import METRICS, RunConfig, TaskConfig, to_dict
from skytune.data.batches import Ragged
from skytune.tasks import Scoring, find_task

TEXTS = (
    "a gripping, tidy little thriller that never overstays its welcome",
    "the jokes arrive late, and the plot has left before them",
    "an uneven but heartfelt portrait of two brothers; the camera lingers where it should cut",
)


def make_predictions(rows: int, classes: int, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, rows)
    logits = rng.normal(size=(rows, classes)) * 1.1
    logits[np.arange(rows), labels] += 1.3 + math.log(classes) / 2
    return logits.astype("float32"), labels


def make_evaluation(rows: int = 853, classes: int = 2, texts: bool = True, seed: int = 7) -> dict[str, Any]:
    logits, labels = make_predictions(rows, classes, seed)
    names = ["negative", "positive"] if classes == 2 else [f"topic {i:02d}" for i in range(classes)]
    lines = [f"{TEXTS[i % 3]} ({i})" for i in range(rows)] if texts else None
    if lines and rows > 300:
        lines[:] = [line if i % 4 else " ".join([line] * 12) for i, line in enumerate(lines)]
    return scored(logits, labels, names, list(METRICS), lines)


def scored(
    logits: np.ndarray, labels: np.ndarray, names: list[str], metrics: list[str], lines: list[str] | None = None
) -> dict[str, Any]:
    task = find_task(TaskConfig(name="text-classification"))
    shown = lines or [f"row {row}" for row in range(len(labels))]
    return task.score(Ragged.of(logits), labels, Scoring(names=names, metrics=metrics, shown=shown)).as_dict()


def make_history(steps: int = 250, every: int = 2, validations: int = 2) -> list[dict[str, Any]]:
    rng = np.random.default_rng(3)
    records: list[dict[str, Any]] = []
    for step in range(every, steps + 1, every):
        warm = min(1.0, step / 12)
        records.append(
            {
                "kind": "step",
                "step": step,
                "epoch": step / 125,
                "loss": 0.69 * math.exp(-step / 160) + 0.05 + rng.normal() * 0.045,
                "lr": 1e-4 * warm * (1 - step / steps),
                "grad_norm": 1.5 + 3 * math.exp(-step / 50) + abs(rng.normal()),
                "rows": 32 * step,
                "tokens": 900 * step,
                "samples_per_s": 71 + rng.normal() * 4 - 30 * (step <= every),
                "tokens_per_s": 2000.0,
                "elapsed_s": step * 0.45,
            }
        )
        if validations and step % (steps // validations) < every:
            metrics = {
                "loss": 0.47 - step / 5000,
                "accuracy": 0.77 + step / 8000,
                "f1": 0.765 + step / 8000,
                "n_rows": 853,
            }
            records.append(
                {
                    "kind": "validation",
                    "step": step,
                    "epoch": step / 125,
                    "split": "validation",
                    "metrics": metrics,
                    "elapsed_s": step * 0.45,
                }
            )
    return records


def make_training() -> dict[str, Any]:
    return {
        "status": "completed",
        "steps": 250,
        "epochs": 2.0,
        "world_size": 1,
        "processes_asked": "auto",
        "device": "cpu",
        "precision": "fp32",
        "best": {"step": 250, "metric": "accuracy", "value": 0.8013},
        "select": "best",
        "phases": {"start_s": 6.2, "load_s": 1.1, "train_s": 111.4, "validate_s": 7.9, "predict_s": 8.3, "save_s": 0.4},
        "train_rows": 8000,
        "train_tokens": 218_400,
        "padding_share": 0.061,
        "samples_per_s": 71.8,
        "tokens_per_s": 1960.2,
        "parameters": 22_713_986,
        "trainable_parameters": 22_713_986,
        "peak_memory_bytes": None,
        "versions": {"torch": "2.13.0", "transformers": "5.17.0", "accelerate": "1.15.0", "python": "3.11.7"},
        "steps_per_epoch": 125,
        "global_batch": 32,
        "micro_batch": 32,
        "accumulation": 1,
    }


@pytest.fixture(scope="session")
def run() -> dict[str, Any]:
    """Arguments of `build_report` for a whole run."""
    return {
        "title": "minilm-movie-reviews",
        "training": make_training(),
        "history": make_history(),
        "evaluations": {"validation": make_evaluation(seed=8), "test": make_evaluation()},
        "config": to_dict(RunConfig()),
        "data_notes": {
            "rows": {"train": 4000, "validation": 853, "test": 853},
            "leaks_dropped": 3,
            "truncated": 0,
            "labels": ["negative", "positive"],
        },
        "labels": ["negative", "positive"],
        "links": {
            "model": "/home/me/.cache/skytune/runs/minilm-movie-reviews-3f2a9c1b/outputs/model",
            "load_it": "transformers.pipeline('text-classification', model='/home/me/.cache/skytune/runs/"
            "minilm-movie-reviews-3f2a9c1b/outputs/model')",
        },
    }
