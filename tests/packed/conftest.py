"""Small models of every family with a packed form, and rows for them."""

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers

from skytune.data.batches import Padding, TokenTable

SMALL = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}


@pytest.fixture
def tiny():
    """Return a function (kind, dropout) -> a model with three classes, always with the same weights."""

    def make(kind: str = "bert", dropout: float = 0.0) -> torch.nn.Module:
        torch.manual_seed(0)
        if kind == "distilbert":
            config = transformers.DistilBertConfig(
                vocab_size=60,
                dim=32,
                n_layers=2,
                n_heads=2,
                hidden_dim=48,
                dropout=dropout,
                attention_dropout=dropout,
                seq_classif_dropout=dropout,
                max_position_embeddings=40,
                num_labels=3,
            )
            return transformers.DistilBertForSequenceClassification(config)
        config_class, model_class = {
            "bert": (transformers.BertConfig, transformers.BertForSequenceClassification),
            "roberta": (transformers.RobertaConfig, transformers.RobertaForSequenceClassification),
            "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaForSequenceClassification),
            "camembert": (transformers.CamembertConfig, transformers.CamembertForSequenceClassification),
        }[kind]
        config = config_class(
            **SMALL,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            max_position_embeddings=40,
            num_labels=3,
            type_vocab_size=2 if kind == "bert" else 1,
        )
        return model_class(config)

    return make


@pytest.fixture
def rows_of():
    """Return a function (rows, pad, types) -> a table of rows of 1 to 22 tokens, three classes."""

    def make(rows: int, pad: int = 0, types: bool = False) -> TokenTable:
        random = np.random.default_rng(1)
        ids = [random.integers(4, 60, size=n).tolist() for n in random.integers(1, 23, size=rows)]
        columns = {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}
        if types:
            columns["token_type_ids"] = [[0] * (len(row) // 2) + [1] * (len(row) - len(row) // 2) for row in ids]
        return TokenTable(pa.table({**columns, "labels": random.integers(0, 3, size=rows)}), Padding(pad))

    return make
