"""A small design on the tiny model, and launchers that stand where machines would be."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytune.config import ComputeConfig, RunConfig, from_dict
from skytune.job import JobDir, write_json
from skytune.pricing.prices import Price
from skytune.study.machines import Machine
from skytune.training.outputs import write_predictions


@pytest.fixture(scope="session")
def sentences_file(tmp_path_factory: pytest.TempPathFactory, sentences: Callable[..., Any]) -> Path:
    path = tmp_path_factory.mktemp("sentences") / "rows.tsv"
    rows = dict(sentences(400, seed=3))
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows.items()), encoding="utf-8")
    return path


@pytest.fixture
def design(tiny_model: Path, sentences_file: Path) -> Callable[..., RunConfig]:
    """Return a maker of experiments: keywords are keys of `study`, `run` those of the whole."""

    def make(run: dict[str, Any] | None = None, **benchmark: Any) -> RunConfig:
        base: dict[str, Any] = {
            "pipeline": "study",
            "model": {"name": str(tiny_model)},
            "data": {"source": "files", "name": "files", "train": str(sentences_file), "max_rows": 64},
            "batch": {"global_size": 16},
            "optimizer": {"lr": 5e-3},
            "eval": {"metrics": ["accuracy", "f1"]},
            "checkpoint": {"select": "last"},
            "tracker": {"names": []},
            "launch": {"threads": 1},
            "compute": {"device": "cpu"},
        }
        for key, value in (run or {}).items():
            base[key] = {**base[key], **value} if isinstance(value, dict) and key in base else value
        return from_dict(RunConfig, {**base, "study": {"name": "test", **benchmark}})

    return make


class RecordedLauncher:
    """NOT a launcher: writes into the job directory what a launcher that brings machines leaves there.

    Args:
        attempts: of `outputs/cost.json`, as the SkyPilot launcher records them.
        accuracy: share of predictions that are right.
        seconds: how long training says it took; by (rows, devices).
    """

    def __init__(
        self,
        machine: Machine,
        attempts: list[dict[str, Any]] | None = None,
        accuracy: float = 0.75,
        fails: Exception | None = None,
        lasts: float = 0.0,
        together: int = 1,
    ) -> None:
        self.machine, self.attempts, self.accuracy, self.fails, self.lasts = machine, attempts, accuracy, fails, lasts
        self.runs: list[str] = []
        self.at_once, self.most, self._lock = 0, 0, threading.Condition()
        self.together = together  # so many must have been here at once before the first one ends

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        with self._lock:
            self.runs.append(job.root.name)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            self._lock.notify_all()
            assert self._lock.wait_for(lambda: self.most >= self.together, 60), self.most
        try:
            time.sleep(self.lasts)
            if self.attempts is not None:
                write_json(job.outputs / "cost.json", {"usd": None, "phases": {}, "attempts": self.attempts})
            if self.fails is not None:
                raise self.fails
            self._leave(job)
        finally:
            with self._lock:
                self.at_once -= 1

    def _leave(self, job: JobDir) -> None:
        from skytune.data.tables import read_split

        written = job.job
        labels = np.asarray(read_split(job.inputs / "validation")["labels"])
        right = np.arange(len(labels)) < round(self.accuracy * len(labels))
        answered = np.where(right, labels, 1 - labels)
        logits = np.stack([1.0 - answered, answered.astype(float)], axis=1).astype("float32")
        write_predictions(job.predictions("validation"), np.arange(len(labels)), labels, logits)
        rows, batch = written.sizes["train"], written.config.batch.global_size
        devices = max(1, self.machine.devices * self.machine.nodes)
        steps = written.config.max_steps or written.config.epochs * -(-rows // batch)
        samples = steps * batch if written.config.max_steps else rows * written.config.epochs
        train_s = samples / (100.0 * devices)
        job.write_result(
            {
                "status": "completed",
                "world_size": devices,
                "device": f"cuda {self.machine.accelerator}",
                "precision": "bf16",
                "steps": steps,
                "epochs": float(written.config.epochs),
                "train_rows": samples,
                "train_tokens": 12 * samples,
                "samples_per_s": samples / train_s,
                "tokens_per_s": 12 * samples / train_s,
                "phases": {
                    "start_s": 5.0,
                    "load_s": 2.0,
                    "train_s": train_s,
                    "validate_s": 1.0,
                    "predict_s": 1.0,
                    "save_s": 0.5,
                },
                "versions": {"torch": "2.13.0"},
                "parameters": 1000,
            }
        )


@pytest.fixture
def recorded() -> type[RecordedLauncher]:
    return RecordedLauncher


@pytest.fixture
def prices() -> Callable[[Machine], Price]:
    """A price list of made numbers."""
    usd = {"g5.xlarge": 1.0, "g5.12xlarge": 6.0, "p4d.24xlarge": 20.0, "g5.xlarge spot": 0.4}
    return lambda machine: Price(usd.get(machine.priced), "a made list")
