"""The packed form of a model computes what the padded model computes: logits, gradients, and where training leads."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from skytune.config import OptimizerConfig
from skytune.data.batches import TokenTable
from skytune.training.fast.models import PackedModel, why_not
from skytune.training.fast.packing import DeviceTable
from skytune.training.fast.step import PackedStep
from skytune.training.schedule import build_optimizer

SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


def tiny(kind: str, dropout: float = 0.0) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "distilbert":
        config = transformers.DistilBertConfig(
            vocab_size=60, dim=32, n_layers=2, n_heads=2, hidden_dim=48, dropout=dropout, attention_dropout=dropout,
            seq_classif_dropout=dropout, max_position_embeddings=40, num_labels=3,
        )  # fmt: skip
        return transformers.DistilBertForSequenceClassification(config)
    config_class, model_class = {
        "bert": (transformers.BertConfig, transformers.BertForSequenceClassification),
        "roberta": (transformers.RobertaConfig, transformers.RobertaForSequenceClassification),
        "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaForSequenceClassification),
        "camembert": (transformers.CamembertConfig, transformers.CamembertForSequenceClassification),
    }[kind]
    config = config_class(
        **SMALL, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, max_position_embeddings=40,
        num_labels=3, type_vocab_size=2,
    )  # fmt: skip
    return model_class(config)


def table(rows: int, pad: int, types: bool = False) -> TokenTable:
    random = np.random.default_rng(1)
    ids = [random.integers(4, 60, size=n).tolist() for n in random.integers(1, 23, size=rows)]
    columns = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
    if types:
        columns["token_type_ids"] = [[0] * (len(row) // 2) + [1] * (len(row) - len(row) // 2) for row in ids]
    return TokenTable(pa.table({**columns, "labels": random.integers(0, 3, size=rows)}), pad)


def padded_loss(model: torch.nn.Module, data: TokenTable, rows: np.ndarray) -> torch.Tensor:
    return model(**data.batch(rows)).loss


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert", "distilbert"])
def test_packed_training_is_padded_training(kind):
    """Ten AdamW steps with clipping: losses, gradient norm and weights of the module loop with torch's own optimizer."""
    config = OptimizerConfig(lr=3e-3, weight_decay=0.1, clip_norm=0.5)
    plain, model = tiny(kind).train(), tiny(kind).train()
    assert why_not(model) == ""
    pad = int(model.config.pad_token_id)
    data = table(40, pad, types=kind == "bert")
    reference = build_optimizer(config, plain)
    packed = PackedModel(model, build_optimizer(config, model), torch.float32)
    step = PackedStep(packed, DeviceTable(data, torch.device("cpu")), rows=8, clip_norm=0.5)
    random = np.random.default_rng(2)
    for number in range(10):
        rows = random.permutation(40)[: 8 if number % 3 else 5]
        expected = padded_loss(plain, data, rows)
        expected.backward()
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        reference.step()
        reference.zero_grad()
        step.rows.fill_(-1)
        step.rows[: len(rows)] = torch.from_numpy(rows)
        step.share.fill_(1 / len(rows))
        packed.arena.scalars[:3] = torch.tensor([3e-3, *packed.arena.corrections(number + 1)])
        step.run(256)
        assert step.loss.item() == pytest.approx(expected.item(), abs=1e-5)
        assert packed.arena.norm.item() == pytest.approx(norm.item(), rel=1e-4)
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q, atol=1e-5, rtol=0, msg=name)
    state = packed.arena.optimizer.state[model.classifier.weight if hasattr(model.classifier, "weight") else p]
    assert state["exp_avg"].abs().sum() > 0
