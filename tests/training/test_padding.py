"""A row's logits are the same alone, padded, in our predictions and in the exported model, or somebody says so."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_architectures import ARCHITECTURES, make_model

from skytune.config import DataConfig, ModelConfig, RunConfig, UserError, from_dict
from skytune.data import prepare
from skytune.launch import train
from skytune.training.outputs import read_predictions

DEPENDS = {"fnet": "FNet", "convbert": "ConvBert", "gpt2-padded-left": "GPT2"}
"""Architectures whose logits depend on padding."""

OWN = """
import torch


class Words(torch.nn.Module):
    def __init__(self, vocab_size, num_labels, mixes=False):
        super().__init__()
        self.vectors = torch.nn.EmbeddingBag(vocab_size, num_labels)
        self.mixes = mixes

    def forward(self, input_ids, labels=None):
        logits = self.vectors(input_ids)
        logits = logits * len(logits) if self.mixes else logits
        return {"loss": None if labels is None else torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Blind(Words):
    def forward(self, input_ids):
        return super().forward(input_ids)


class Strict(Words):
    def forward(self, input_ids, labels):
        return super().forward(input_ids, labels)


class Pixels(Words):
    def forward(self, pixels, labels=None):
        return super().forward(pixels, labels)
"""

Made = tuple[Any, Any, list[str]]


@pytest.fixture
def texts(sentences: Callable[[int, int], list[tuple[str, int]]]) -> list[tuple[str, int]]:
    """Rows of many lengths; some have special tokens written out in them, which are text."""
    rows = [(f"{text} number {number}", label) for number, (text, label) in enumerate(sentences(48, 0))]
    odd = ["a film </s> it was fine", "a [SEP] plot [CLS]", "<|endoftext|> dull <s> the cast <pad>", "good </s>"]
    return rows + [(text, number % 2) for number, text in enumerate(odd)]


@pytest.fixture
def made(here: None, tmp_path: Path, texts: list[tuple[str, int]]) -> Callable[..., Made]:
    """Return a function that trains an architecture for three steps: the job, what was prepared, the test's texts."""

    def make(name: str, **data: Any) -> Made:
        import pandas as pd

        names = np.array(["negative", "positive"])
        table = pd.DataFrame({"text": [t for t, _ in texts], "label": names[[label for _, label in texts]]})
        table.to_csv(tmp_path / "train.csv", index=False)
        table.iloc[-13:].to_csv(tmp_path / "test.csv", index=False)
        folder = make_model(name, tmp_path / name, [text for text, _ in texts])
        model = ModelConfig(name=str(folder))
        files = {"train": str(tmp_path / "train.csv"), "test": str(tmp_path / "test.csv"), "drop_leaks": False}
        found = prepare(from_dict(DataConfig, {"source": "files", **files, **data}), model, 0, {})
        values = {
            "model": {"name": str(folder)},
            "compute": {"device": "cpu"},
            "max_steps": 3,
            "optimizer": {"lr": 0.01},
            "batch": {"global_size": 16},
            "eval": {"batch_size": 5},
        }
        splits = {"validation": found.validation, "test": found.test}
        done = train(from_dict(RunConfig, values), found.train, splits, found.tokenizer)
        return done.job, found, [text for text, _ in texts[-13:]]

    return make


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_alone_padded_predicted_and_exported_agree(
    name: str, made: Callable[..., Made], caplog: pytest.LogCaptureFixture
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    with caplog.at_level(logging.WARNING, "skytune"):
        job, _, texts = made(name)
    rows, _, predicted = read_predictions(job.predictions("test"))
    assert rows.tolist() == list(range(len(texts)))
    model = AutoModelForSequenceClassification.from_pretrained(job.model)
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    assert model.config.pad_token_id == tokenizer.pad_token_id

    def logits(some: list[str]) -> np.ndarray:
        batch = tokenizer(some, padding=True, truncation=True, return_tensors="pt")
        if "token_type_ids" in batch and name in ("distilbert", "modernbert"):
            del batch["token_type_ids"]  # the tiny tokenizer makes what these models do not take
        with torch.no_grad():
            return np.asarray(model(**batch).logits)

    alone = np.concatenate([logits([text]) for text in texts])
    assert np.ptp(alone, axis=0).max() > 1e-3, "all rows have the same logits: nothing is compared"
    np.testing.assert_allclose(predicted, alone, atol=1e-5, rtol=1e-6)
    lines = [record.getMessage() for record in caplog.records if "one length" in record.getMessage()]
    if name in DEPENDS:
        assert len(lines) == 1 and lines[0].startswith(DEPENDS[name]), lines
    else:
        assert not lines
        np.testing.assert_allclose(logits(texts), alone, atol=1e-5, rtol=1e-6)


@pytest.fixture
def own(
    here: None, run_job: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, np.ndarray]]:
    """Return a function that trains a module of one's own for three steps: losses, and the logits of the test rows."""
    (tmp_path / "own_words.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    def train_own(kind: str, args: dict[str, Any], **groups: Any) -> dict[str, np.ndarray]:
        model = {"_target_": f"own_words.{kind}", "args": args}
        done = run_job(model=model, max_steps=3, log={"every_steps": 1}, **groups)
        losses = [record["train/loss"] for record in done.history if "train/loss" in record]
        return {"losses": np.array(losses), "logits": read_predictions(done.job.predictions("test"))[2]}

    return train_own


def test_a_model_without_a_mask_sees_no_padding(
    own: Callable[..., dict[str, np.ndarray]], caplog: pytest.LogCaptureFixture
) -> None:
    """However the batch is cut: all rows one by one need no padding."""
    together = own("Words", {}, eval={"batch_size": 16})
    alone = own("Words", {}, name="alone", eval={"batch_size": 1}, batch={"micro_size": 1})
    np.testing.assert_allclose(together["losses"], alone["losses"], rtol=1e-6)
    np.testing.assert_allclose(together["logits"], alone["logits"], atol=1e-6)
    assert "Words has no attention mask: the logits of a row are not the same alone and padded" in caplog.text


def test_rows_that_change_each_other_are_refused(own: Callable[..., dict[str, np.ndarray]]) -> None:
    with pytest.raises(UserError, match="the logits of a row change with the other rows of its batch"):
        own("Words", {"mixes": True})


def test_what_forward_does_not_take_or_lacks_is_one_line(own: Callable[..., dict[str, np.ndarray]]) -> None:
    with pytest.raises(
        UserError, match=r"^Blind\.forward takes no labels; with labels it must return loss and logits$"
    ):
        own("Blind", {})
    with pytest.raises(
        UserError, match=r"^Pixels\.forward needs pixels, which the rows of 'train' do not have \(input"
    ):
        own("Pixels", {})


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_end_tokens_in_texts_as_control_are_refused_where_the_model_counts_them(
    name: str, made: Callable[..., Made]
) -> None:
    with pytest.raises(UserError, match=r"together: All examples must .* data\.special_tokens=text may help"):
        made(name, special_tokens="control")


def test_one_rule_for_special_tokens_goes_with_the_model(made: Callable[..., Made]) -> None:
    from transformers import AutoTokenizer

    from skytune.models import read_specials_as

    for rule, ends in (("control", 3), ("text", 1)):
        job, found, _ = made("roberta", special_tokens=rule)
        exported = AutoTokenizer.from_pretrained(job.model)
        row = exported("a </s> b </s> c")["input_ids"]
        assert row.count(exported.eos_token_id) == ends
        read_specials_as(exported, None)  # a later evaluation that says nothing
        assert exported("a </s> b </s> c")["input_ids"] == row
        in_tests = [ids.tolist().count(exported.eos_token_id) for ids in found.test["input_ids"]]
        assert (max(in_tests) > 1) == (rule == "control")


def test_all_rows_must_have_places_and_types_in_the_model() -> None:
    import pyarrow as pa
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from skytune.data.batches import TokenTable
    from skytune.training.inputs import check_vocabulary

    torch.manual_seed(0)
    for kind, places in (("bert", 12), ("roberta", 10)):
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        config = AutoConfig.for_model(kind, vocab_size=30, max_position_embeddings=12, type_vocab_size=2, **sizes)
        model = AutoModelForSequenceClassification.from_config(config)

        def table(length: int, kind: int = 0, row: int = 7) -> dict[str, TokenTable]:
            ids = [[5] * 3] * row + [[5] * length]
            types = [[0] * 3] * row + [[kind] * length]
            return {
                "test": TokenTable(pa.table({"input_ids": ids, "token_type_ids": types, "labels": [0] * (row + 1)}))
            }

        check_vocabulary(model, table(places, 1))
        with pytest.raises(
            UserError, match=rf"^split 'test' has a row of {places + 1} tokens, the model takes {places}:"
        ):
            check_vocabulary(model, table(places + 1))
        with pytest.raises(UserError, match=r"split 'test' has token type 2, the model knows 2"):
            check_vocabulary(model, table(places, 2))
