"""Everything that can be the user's own, in real runs: by import path, and by a name that `@configurable` gave it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

pytestmark = pytest.mark.slow

BY_PATH = '''
"""By `_target_`; nothing here knows of skytune."""
import json
import os
import random
from pathlib import Path

import datasets
import evaluate
import torch

NOTES = Path(os.environ["OWN_NOTES"])


def note(what, value):
    rank = os.environ.get("RANK", "0")
    (NOTES / f"{what}-{rank}.json").write_text(json.dumps(value))


class Bag(torch.nn.Module):
    """Mean of embeddings, one linear layer; returns a dict."""

    def __init__(self, num_labels, vocab_size, width=8):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, width)
        self.head = torch.nn.Linear(width, num_labels)

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask.unsqueeze(-1).float()
        logits = self.head((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def sentences(rows, seed=0):
    draw = random.Random(seed)
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["poor", "fine"]))

    def split(count):
        labels = [draw.randrange(2) for _ in range(count)]
        words = [draw.choice([["bad", "poor", "dull"], ["good", "fine", "nice"]][label]) for label in labels]
        rest = [" ".join(draw.choice(["the", "a", "film", "is", "it"]) for _ in range(8)) for _ in labels]
        texts = [f"{word} {more}" for word, more in zip(words, rest)]
        return datasets.Dataset.from_dict({"text": texts, "label": labels}, features=features)

    return datasets.DatasetDict(train=split(rows), validation=split(20), test=split(21))


class Halved(torch.optim.SGD):
    """SGD that says that it was made."""

    def __init__(self, params, lr, nesterov=False, momentum=0.0):
        super().__init__(params, lr=lr, nesterov=nesterov, momentum=momentum)
        note("optimizer", {"lr": lr, "nesterov": nesterov, "groups": len(self.param_groups)})


def stairs(step, total_steps, height=0.5):
    return height ** (step // 4)


def misses(predictions, references, logits):
    assert logits.shape == (len(predictions), 2)
    return {"count": sum(p != r for p, r in zip(predictions, references)), "rows": len(predictions)}


class Agreement(evaluate.Metric):
    def _info(self):
        features = datasets.Features(predictions=datasets.Value("int64"), references=datasets.Value("int64"))
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references, scale=1.0):
        return {"agreement": scale * sum(p == r for p, r in zip(predictions, references)) / len(references)}


class Diary:
    """Notes what it saw."""

    def __init__(self, words, config):
        self.seen = {"words": words, "config": config.extra, "steps": 0, "validations": []}

    def on_step_end(self, run):
        self.seen["steps"] += 1

    def on_validation_end(self, run):
        self.seen["validations"].append(run.metrics["misses_count"])

    def on_run_end(self, run):
        note("diary", {**self.seen, "extra": run.extra, "size": run.world.size})
'''

BY_NAME = '''
"""By name, in a file beside `run.py`."""
import json
import os
from pathlib import Path

import torch

from skytune.config.targets import configurable


@configurable("data", "points")
class Points(torch.utils.data.Dataset):
    """Numbers, no texts: two clouds in the plane."""

    def __init__(self, rows: int = 80):
        drawn = torch.Generator().manual_seed(3)
        self.labels = torch.arange(rows) % 2
        self.points = torch.randn(rows, 2, generator=drawn) + 4 * self.labels[:, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return {"point": self.points[row], "label": self.labels[row]}


@configurable("model", "line")
class Line(torch.nn.Module):
    """One linear layer; returns a tuple."""

    def __init__(self, num_labels, bias: bool = True):
        super().__init__()
        self.layer = torch.nn.Linear(2, num_labels, bias=bias)

    def forward(self, point, labels=None):
        logits = self.layer(point)
        return (logits,) if labels is None else (torch.nn.functional.cross_entropy(logits, labels), logits)


@configurable("optimizer", "plain")
class Plain(torch.optim.SGD):
    """SGD with a rate of its own."""

    def __init__(self, params, lr: float = 0.5):
        super().__init__(params, lr=lr)


@configurable("schedule", "saw")
def saw(step, total_steps, teeth: int = 2):
    """Up and down."""
    return 1.0 if step % teeth == 0 else 0.5


@configurable("metric", "wrong")
def wrong(predictions, references, weight: float = 1.0):
    """The share that is wrong."""
    return weight * sum(p != r for p, r in zip(predictions, references)) / len(predictions)


@configurable("callback", "memo")
class Memo:
    """Leaves a file."""

    def __init__(self, name: str = "memo"):
        self.name = name

    def on_run_end(self, run):
        (Path(os.environ["OWN_NOTES"]) / f"{self.name}.json").write_text(json.dumps({"rows": run.rows, **run.extra}))
'''


@pytest.fixture(scope="module")
def place(new_checkout: Callable[[], Any]) -> Any:
    """A checkout with the user's files: one beside `run.py`, one in a folder on PYTHONPATH."""
    checkout = new_checkout(warm=True)
    checkout.notes, modules = checkout.home / "notes", checkout.home / "modules"
    checkout.notes.mkdir()
    modules.mkdir()
    (modules / "own_by_path.py").write_text(BY_PATH)
    (checkout.source / "src" / "own_by_name.py").write_text(BY_NAME)
    checkout.env |= {"OWN_NOTES": str(checkout.notes), "PYTHONPATH": str(modules)}
    return checkout


def folder_of(place: Any, name: str) -> Path:
    (folder,) = (place.home / "skytune" / "runs").glob(f"{name}-*")
    return folder / "outputs"


def history(outputs: Path, kind: str) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (outputs / "history.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == kind]


TOTAL = 30
"""Optimizer steps of the run below."""

OWN_METRICS = [
    "+eval.extra_metrics.misses._target_=own_by_path.misses",
    "+eval.extra_metrics.agreement._target_=own_by_path.Agreement",
    "+eval.extra_metrics.agreement.scale=100",
]


@pytest.fixture(scope="module")
def by_path(place: Any, tiny_model: Path) -> Path:
    """One run on two processes in which everything is the user's own."""
    place.words = [
        f"model.name={tiny_model}",
        "model._target_=own_by_path.Bag",
        "+model.args.width=16",
        "data._target_=own_by_path.sentences",
        "+data.args.rows=240",
        *OWN_METRICS,
        "compute=cpu",
    ]
    done = place.run(
        *place.words,
        "optimizer._target_=own_by_path.Halved",
        "optimizer.lr=1.0",
        "+optimizer.args.nesterov=true",
        "+optimizer.args.momentum=0.5",
        "schedule._target_=own_by_path.stairs",
        "+schedule.args.height=0.9",
        "+callbacks.diary._target_=own_by_path.Diary",
        "+callbacks.diary.words=[a,b]",
        "+extra.my_key=1",
        "checkpoint.metric=misses_count",
        "checkpoint.mode=min",
        "epochs=1",
        "batch.global_size=8",
        "log.every_steps=1",
        "eval.every_steps=10",
        "launch.num_processes=2",
        "launch.threads=1",
        "name=by-path",
    )
    assert done.code == 0, done.err
    return folder_of(place, "by-path")


def test_model_and_data_of_ones_own(by_path: Path) -> None:
    job = json.loads((by_path.parent / "job.json").read_text())
    assert job["labels"] == ["poor", "fine"]
    assert (job["sizes"]["validation"], job["sizes"]["test"]) == (20, 21)
    weights = load_file(by_path / "model" / "model.safetensors")
    assert {name: value.shape for name, value in weights.items()} == {
        "embedding.weight": (19, 16),
        "head.weight": (2, 16),
        "head.bias": (2,),
    }
    assert json.loads((by_path / "result.json").read_text())["world_size"] == 2


def test_optimizer_and_schedule_of_ones_own(place: Any, by_path: Path) -> None:
    made = json.loads((place.notes / "optimizer-1.json").read_text())
    assert made == {"lr": 1.0, "nesterov": True, "groups": 2}
    steps = history(by_path, "step")
    assert [record["lr"] for record in steps] == pytest.approx([0.9 ** (k // 4) for k in range(len(steps))])
    assert len(steps) == TOTAL


def test_metrics_of_ones_own_are_measured_choose_and_are_reported(by_path: Path) -> None:
    validations = history(by_path, "validation")
    counts = {record["step"]: record["metrics"]["misses_count"] for record in validations}
    assert list(counts) == sorted({10, 20, TOTAL})
    assert all(record["metrics"]["misses_rows"] == 20 for record in validations)
    best = json.loads((by_path / "result.json").read_text())["best"]
    assert (best["metric"], best["value"]) == ("misses_count", min(counts.values()))
    assert best["step"] == min(step for step, count in counts.items() if count == best["value"])
    for split, rows in (("validation", 20), ("test", 21)):
        stored = json.loads((by_path / "model" / f"{split}_results.json").read_text())
        assert stored["metrics"]["misses_rows"] == stored["n_rows"] == rows
        assert stored["metrics"]["agreement"] == pytest.approx(100 * stored["metrics"]["accuracy"])
        right = sum(stored["confusion"][k][k] for k in (0, 1))
        assert stored["metrics"]["misses_count"] == rows - right
    losses = [record["loss"] for record in history(by_path, "step")]
    assert sum(losses[-10:]) < 0.98 * sum(losses[:10])  # it learns, so all of it works together


def test_a_callback_of_ones_own_sees_the_run(place: Any, by_path: Path) -> None:
    counts = [record["metrics"]["misses_count"] for record in history(by_path, "validation")]
    for rank in (0, 1):
        seen = json.loads((place.notes / f"diary-{rank}.json").read_text())
        assert seen == {
            "words": ["a", "b"],
            "config": {"my_key": 1},
            "extra": {"my_key": 1},
            "steps": TOTAL,
            "validations": counts,
            "size": 2,
        }


def test_a_model_of_ones_own_is_made_again_and_scored(place: Any, by_path: Path) -> None:
    model = by_path / "model"
    before = json.loads((model / "test_results.json").read_text())
    (model / "test_results.json").unlink()
    words = [word for word in place.words if not word.startswith(("model.", "+model."))]
    done = place.run(*words, "pipeline=evaluate", f"checkpoint={model}")
    assert done.code == 0, done.err
    after = json.loads((model / "test_results.json").read_text())
    assert after["n_rows"] == before["n_rows"] == 21
    for name, value in before["metrics"].items():
        assert after["metrics"][name] == pytest.approx(value, abs=1e-6), name


BY_NAME_WORDS = [
    "plugins=[own_by_name]",
    "data=points",
    "data.args.rows=100",
    "model=line",
    "optimizer=plain",
    "schedule=saw",
    "+metric=wrong",
    "eval.extra_metrics.wrong.weight=10",
    "+callback=memo",
    "callbacks.memo.name=letter",
    "+extra.my_key=x",
    "epochs=6",
    "batch.global_size=16",
    "log.every_steps=1",
    "compute=cpu",
    "name=by-name",
    "checkpoint.metric=wrong",
    "checkpoint.mode=min",
]


def test_everything_by_name(place: Any) -> None:
    """A file beside `run.py` registers all groups; the data set brings numbers, so there is no tokenizer."""
    done = place.run(*BY_NAME_WORDS)
    assert done.code == 0, done.err
    outputs = folder_of(place, "by-name")
    assert set(load_file(outputs / "model" / "model.safetensors")) == {"layer.weight", "layer.bias"}
    sizes = json.loads((outputs.parent / "job.json").read_text())["sizes"]
    assert sizes == {"train": 80, "validation": 10, "test": 10}
    assert [record["lr"] for record in history(outputs, "step")] == [0.5 if k % 2 == 0 else 0.25 for k in range(30)]
    stored = json.loads((outputs / "model" / "test_results.json").read_text())
    assert stored["metrics"]["accuracy"] > 0.8
    assert stored["metrics"]["wrong"] == pytest.approx(10 * (1 - stored["metrics"]["accuracy"]))
    assert json.loads((outputs / "result.json").read_text())["best"]["metric"] == "wrong"
    assert json.loads((place.notes / "letter.json").read_text()) == {"rows": 480, "my_key": "x"}
    assert "wrong 0" in done.out


def test_a_changed_file_of_ones_own_is_seen_by_the_cache(place: Any) -> None:
    """And an unchanged one is reused (the test before made the first run)."""
    assert place.run(*BY_NAME_WORDS).code == 0
    assert set(place.statuses().values()) == {"cached"}
    file = place.source / "src" / "own_by_name.py"
    file.write_text(file.read_text().replace("super().__init__(params, lr=lr)", "super().__init__(params, lr=lr / 2)"))
    done = place.run(*BY_NAME_WORDS)
    assert done.code == 0, done.err
    assert place.statuses()["train_model"] == "completed"
