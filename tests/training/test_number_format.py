"""The number format that is asked for is the one that is computed in."""

import sys
from pathlib import Path
from typing import Any

import pytest

OWN = '''
import torch

SEEN = []


class Spy(torch.nn.Module):
    """Notes the number format of its matrix products."""

    def __init__(self, num_labels, vocab_size):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(vocab_size, 8)
        self.head = torch.nn.Linear(8, num_labels)

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.embedding(input_ids))
        SEEN.append((self.training, str(logits.dtype)))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits.float(), labels)
        return {"loss": loss, "logits": logits}
'''


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "torch.float32"), ("bf16", "torch.bfloat16")])
def test_training_and_validation_compute_in_it(
    run_job: Any, here: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, dtype: str
) -> None:
    (tmp_path / "precision_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("precision_own", None)
    run_job(precision=precision, max_steps=2, model={"_target_": "precision_own.Spy"})
    seen = sys.modules.pop("precision_own").SEEN
    assert {training for training, _ in seen} == {True, False}
    assert {kind for _, kind in seen} == {dtype}
