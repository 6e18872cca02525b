"""Which models have a packed form: where their embeddings, layers and head are.

A packed batch is one row of tokens, sequence after sequence. Embeddings and head run as the model has them, layers by
`EncoderLayer`. What is listed here is tried out against the model itself before it is trusted
(`checking.disagreement`).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .embedding import WordEmbedding, lighten
from .flat_params import FlatParameters, runs
from .layer import LayerGrads, LayerShape, LayerWeights
from .ops import Drop, Partials

PARTS = 4
"""In which the gradient of all layers is summed over processes: the last one has no backward pass to hide behind, and
every one costs a start (BERT-base on 2 GPUs: 4 are a little faster than 2, 6 or 12)."""

SALT = 65_536
"""Distance of the salts of two dropouts; attention uses one for every head."""


@dataclass(frozen=True)
class LayerNames:
    """Where one encoder layer's modules are, below the layer."""

    query: str
    key: str
    value: str
    project: str
    norm1: str
    rise: str
    fall: str
    norm2: str
    attention_dropout: str
    project_dropout: str
    fall_dropout: str


BERT = LayerNames(
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
    "attention.self.dropout",
    "attention.output.dropout",
    "output.dropout",
)
DISTILBERT = LayerNames(
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
    "attention.dropout",
    "",
    "ffn.dropout",
)


@dataclass(frozen=True)
class Family:
    """A kind of model: `layers` below the base model, and how the hidden state of the first tokens becomes logits."""

    names: LayerNames
    layers: str
    head: Callable[[nn.Module, Tensor], Tensor]
    padded_positions: bool = False
    """Positions count from the padding id + 1 (RoBERTa)."""


def _bert_head(model: Any, first: Tensor) -> Tensor:
    return model.classifier(model.dropout(model.base_model.pooler(first[:, None])))


def _roberta_head(model: Any, first: Tensor) -> Tensor:
    return model.classifier(first[:, None])


def _distilbert_head(model: Any, first: Tensor) -> Tensor:
    return model.classifier(model.dropout(torch.relu(model.pre_classifier(first))))


FAMILIES = {
    "bert": Family(BERT, "encoder.layer", _bert_head),
    "roberta": Family(BERT, "encoder.layer", _roberta_head, padded_positions=True),
    "xlm-roberta": Family(BERT, "encoder.layer", _roberta_head, padded_positions=True),
    "camembert": Family(BERT, "encoder.layer", _roberta_head, padded_positions=True),
    "distilbert": Family(DISTILBERT, "transformer.layer", _distilbert_head),
}


def why_not(model: nn.Module, tokens: np.ndarray) -> str:
    """Return why a model has no packed form for these tokens (of all rows), as the end of a sentence; empty if it has
    one."""
    config = getattr(model, "config", None)
    kind = getattr(config, "model_type", type(model).__name__)
    family = FAMILIES.get(kind)
    if family is None or not type(model).__name__.endswith("ForSequenceClassification"):
        return f"{type(model).__name__} has no packed form"
    act = getattr(config, "hidden_act", getattr(config, "activation", ""))
    if act != "gelu":
        return f"its activation is {act}, not gelu"
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        return "it is a decoder"
    if getattr(config, "position_embedding_type", "absolute") != "absolute":
        return "its positions are not absolute"
    head = (getattr(config, "hidden_size", 0) or model.config.dim) // _heads(model)
    if head not in (16, 32, 64, 128):
        return f"its attention heads have {head} features"
    if family.padded_positions and (tokens == model.config.pad_token_id).any():
        return "texts contain the padding token, which gets no position"
    if any(not p.requires_grad for p in model.parameters()):
        return "some of its weights are frozen"
    if len({id(p) for p in model.parameters()}) != sum(1 for _ in model.named_parameters(remove_duplicate=False)):
        return "some of its weights are shared"
    return ""


def _heads(model: Any) -> int:
    return int(getattr(model.config, "num_attention_heads", 0) or model.config.n_heads)


class PackedModel:
    """A model that computes on packed tokens with an arena's weights."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.AdamW, compute: torch.dtype) -> None:
        self.family = FAMILIES[model.config.model_type]
        layers = _at(model.base_model, self.family.layers)
        names = self.family.names
        blocks = []
        for layer in layers:
            parts = [_at(layer, name) for name in (names.query, names.key, names.value)]
            blocks += [[part.weight for part in parts], _vectors(layer, names)]
        self.arena = FlatParameters(optimizer, compute, blocks)
        self.model = model
        self.pad_id = int(model.config.pad_token_id or 0)
        self.first_position = self.pad_id + 1 if self.family.padded_positions else 0
        eps = float(_at(layers[0], names.norm1).eps)
        self.shapes = [
            LayerShape(
                heads=_heads(model),
                eps=eps,
                attention=Drop(_rate(layer, names.attention_dropout), SALT * (3 * number + 1)),
                project=Drop(_rate(layer, names.project_dropout), SALT * (3 * number + 2)),
                fall=Drop(_rate(layer, names.fall_dropout), SALT * (3 * number + 3)),
            )
            for number, layer in enumerate(layers)
        ]
        self.weights = [self._weights(layer) for layer in layers]
        rows = [self.arena.grad_of(*_vectors(layer, names)) for layer in layers]
        stride = (rows[1].storage_offset() - rows[0].storage_offset()) if len(rows) > 1 else rows[0].numel()
        for before, after in pairwise(rows):
            assert after.storage_offset() - before.storage_offset() == stride, "layers do not lie in order"
        self.partials = Partials(rows[0].as_strided((len(rows), rows[0].numel()), (stride, 1)))
        self.grads = [
            LayerGrads(**self._matrices(layer, self.arena.grad_of), vectors=self.partials.buffer[number])
            for number, layer in enumerate(layers)
        ]
        starts = [grads.qkv.storage_offset() for grads in self.grads]
        last = self.grads[-1].fall
        self.parts = runs(starts, last.storage_offset() + last.numel(), PARTS)
        """Parts of the flat gradient by the layer that completes them, see `ShardedUpdate`."""
        inside = {id(p) for layer in layers for p in layer.parameters()}
        # Embeddings and head run as modules: a copy of the model without its layers, over the rounded weights.
        self.shell = _shell(model, self.family.layers)
        lighten(self.shell)
        self.loose: list[tuple[nn.Parameter, Tensor]] = []
        own = dict(model.named_parameters())
        for name, _ in list(self.shell.named_parameters()):
            assert id(own[name]) not in inside
            low = nn.Parameter(self.arena.low_of(own[name]))
            _put(self.shell, name, low)
            self.loose.append((low, self.arena.grad_of(own[name])))
        self.words = WordEmbedding(self.shell.get_input_embeddings())
        self.shell.set_input_embeddings(self.words)
        self.words_grad = self.arena.grad_of(model.get_input_embeddings().weight)

    def embed(self, ids: Tensor, types: Tensor, positions: Tensor) -> Tensor:
        """Return [T, H] of int64 [T] each; positions count from 0 within a sequence."""
        wanted = {"input_ids": ids[None], "position_ids": positions[None] + self.first_position}
        if self.family.names is BERT:
            wanted["token_type_ids"] = types[None]
        return self.shell.base_model.embeddings(**wanted)[0]

    def head(self, first: Tensor) -> Tensor:
        """Return logits [S, classes] of the first tokens' hidden state [S, H]."""
        return self.family.head(self.shell, first)

    def _matrices(self, layer: nn.Module, of: Callable[..., Tensor]) -> dict[str, Tensor]:
        n = self.family.names
        joined = of(*(_at(layer, name).weight for name in (n.query, n.key, n.value)))
        rest = {name: of(_at(layer, getattr(n, name)).weight) for name in ("project", "rise", "fall")}
        return {"qkv": joined, **rest}

    def _weights(self, layer: nn.Module) -> LayerWeights:
        n, of = self.family.names, self.arena.low_of
        own = {name: _at(layer, getattr(n, name)) for name in ("project", "norm1", "rise", "fall", "norm2")}
        return LayerWeights(
            **self._matrices(layer, of),
            qkv_bias=of(*(_at(layer, name).bias for name in (n.query, n.key, n.value))),
            norm1=of(own["norm1"].weight),
            norm2=of(own["norm2"].weight),
            **{f"{name}_bias": of(module.bias) for name, module in own.items()},
        )


def _vectors(layer: nn.Module, n: LayerNames) -> list[nn.Parameter]:
    """Return the layer's vectors in the order of `LayerGrads`."""
    q, k, v, project, rise, fall = (_at(layer, name) for name in (n.query, n.key, n.value, n.project, n.rise, n.fall))
    norm1, norm2 = _at(layer, n.norm1), _at(layer, n.norm2)
    ends = [norm2.weight, norm2.bias, fall.bias, norm1.weight, norm1.bias, project.bias]
    return [*ends, q.bias, k.bias, v.bias, rise.bias]


def _at(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _rate(layer: nn.Module, name: str) -> float:
    return float(_at(layer, name).p) if name else 0.0


def _shell(model: nn.Module, layers: str) -> Any:
    """Return a copy of the model without its layers."""
    *path, last = layers.split(".")
    holder = _at(model.base_model, ".".join(path))
    kept = getattr(holder, last)
    setattr(holder, last, nn.ModuleList())
    try:
        return copy.deepcopy(model)
    finally:
        setattr(holder, last, kept)


def _put(module: nn.Module, name: str, value: nn.Parameter) -> None:
    *path, last = name.split(".")
    holder = _at(module, ".".join(path)) if path else module
    holder._parameters[last] = value
