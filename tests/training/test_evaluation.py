"""Evaluation of any number of rows on any number of processes: each row once, the same numbers (case 9)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytune.config import METRICS, RunConfig, UserError, from_dict, to_dict
from skytune.launch import predict
from skytune.tasks.metrics import compute
from skytune.training.outputs import read_predictions

ROWS = {"validation": 97, "one": 1, "few": 2}
"""More rows than batches of 8 divide evenly, one row, and fewer rows than three processes."""

MUTE = """
import torch


class Mute(torch.nn.Module):
    def __init__(self, num_labels):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(num_labels))

    def forward(self, input_ids, attention_mask=None, labels=None):
        return {"loss": self.weight.sum()}
"""


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved two-class model whose logits differ well from row to row."""
    import torch

    from skytune import models
    from skytune.config import ModelConfig

    folder = tmp_path_factory.mktemp("trained") / "model"
    model = models.build_model(ModelConfig(name=str(tiny_model)), str(tiny_model), ["negative", "positive"], 7)
    with torch.no_grad():
        model.classifier.weight.mul_(60)
        model.classifier.bias.add_(torch.tensor([0.2, -0.2]))
    models.save_model(model, folder, tiny_model)
    return folder


def predicted(trained: Path, tokenized: Callable[..., Any], processes: int) -> dict[str, tuple[Any, ...]]:
    from transformers import AutoTokenizer

    config = from_dict(
        RunConfig,
        {
            "model": {"name": str(trained)},
            "compute": {"device": "cpu"},
            "eval": {"batch_size": 8},
            "launch": {"num_processes": processes, "threads": 1},
            "name": f"world-{processes}",
        },
    )
    splits = {name: tokenized(count, seed) for seed, (name, count) in enumerate(ROWS.items())}
    done = predict(config, str(trained), splits, AutoTokenizer.from_pretrained(trained))
    assert done.result["world_size"] == processes
    return {name: read_predictions(done.job.predictions(name)) for name in ROWS}


@pytest.mark.slow
def test_any_number_of_rows_on_any_number_of_processes(
    forked: None, trained: Path, tokenized: Callable[..., Any]
) -> None:
    single, *others = (predicted(trained, tokenized, size) for size in (1, 2, 3))
    for name, count in ROWS.items():
        rows, labels, logits = single[name]
        assert rows.tolist() == list(range(count))
        assert labels.tolist() == tokenized(count, list(ROWS).index(name))["labels"][:].tolist()
        assert logits.shape == (count, 2)
        metrics = compute(list(METRICS), {}, logits, labels)
        assert metrics["n_rows"] == count
        for found in others:
            assert found[name][0].tolist() == list(range(count))
            assert found[name][1].tolist() == labels.tolist()
            again = compute(list(METRICS), {}, found[name][2], labels)
            for key, value in metrics.items():
                assert again[key] == pytest.approx(value, abs=1e-9, nan_ok=True), (name, key)
    # The rows are told apart: numbers that were all alike would prove nothing.
    assert np.std(single["validation"][2][:, 0]) > 1e-3
    assert 0 < compute(["accuracy"], {}, single["validation"][2], single["validation"][1])["accuracy"] < 1
    logits_are_those_of_transformers_alone(trained, tokenized(97, 0), single["validation"][2])


def logits_are_those_of_transformers_alone(folder: Path, split: Any, logits: np.ndarray) -> None:
    """One row at a time, without padding."""
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        for row in (0, 41, 96):
            alone = model(input_ids=split[row]["input_ids"].long()[None]).logits[0].numpy()
            assert np.abs(alone - logits[row]).max() < 1e-4


@pytest.mark.slow
def test_a_model_without_logits_is_named_by_the_worker(
    tokenized: Callable[..., Any], tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    from skytune import models
    from skytune.config import ModelConfig

    (tmp_path / "mute_model.py").write_text(MUTE)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ModelConfig(name=str(tiny_model), _target_="mute_model.Mute")
    folder = tmp_path / "mute"
    models.save_model(models.build_model(own, None, ["negative", "positive"], 1), folder, tiny_model)
    values = {"compute": {"device": "cpu"}, "launch": {"num_processes": 1, "threads": 1}, "model": to_dict(own)}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with pytest.raises(UserError, match="must return logits") as caught:
        predict(from_dict(RunConfig, values), str(folder), {"validation": tokenized(16)}, tokenizer)
    assert type(caught.value) is UserError  # its own line, not the end of some log
    assert "\n" not in str(caught.value)


def test_logits_of_another_shape_are_refused(tokenized: Callable[..., Any], tmp_path: Path) -> None:
    import torch

    from skytune.config import Precision
    from skytune.data.batches import TokenTable
    from skytune.distributed.context import DistContext
    from skytune.models import Head
    from skytune.tasks import TASKS
    from skytune.training.prediction import predict as rows_and_logits

    class Flat(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": input_ids.float().mean(dim=1)}

    world = DistContext(0, 1, torch.device("cpu"), Precision.fp32)
    table = TokenTable(tokenized(16).with_format("arrow")[:])
    collect = TASKS["text-classification"].collector(Head())
    with pytest.raises(UserError, match=r"returned logits of shape \[8\] for 8 rows"):
        rows_and_logits(Flat(), table, world, collect, batch_size=8, multiple=64)  # all rows of one width
