"""DeBERTa's attention by relative position without gathering its scores.

transformers multiplies each query with the embeddings of all distances and gathers what belongs to its keys; the
gradient of that is added up by an atomic operation for each pair of tokens, in any order. Here each distance between
two tokens of a row has a column, and a query's keys take the same columns as those of the query before, one further on
(Dai et al. 2019, "Transformer-XL", arXiv:1901.02860, appendix B): copies in both directions, and no more columns than
a row needs.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor


def shifted(scores: Tensor) -> Tensor:
    """Return [..., tokens, tokens] of scores by distance [..., tokens, 2 * tokens - 1]: entry (i, j) is that of column
    j - i + tokens - 1."""
    *outer, tokens, distances = scores.shape
    flat = torch.nn.functional.pad(scores, (0, 1)).reshape(*outer, -1)
    return flat[..., tokens - 1 : -1].reshape(*outer, tokens, distances)[..., :tokens]


def bias(
    module: Any, query: Tensor, key: Tensor, relative_pos: Any, rel_embeddings: Tensor, scale_factor: int
) -> Tensor | int:
    """Return what `DisentangledSelfAttention.disentangled_attention_bias` of transformers does, [rows * heads, tokens,
    tokens], where tokens are numbered from 0; `relative_pos` is not looked at.

    Args:
        query: [rows * heads, tokens, size], as the key.
        rel_embeddings: [2 * span, heads * size], one for each distance, or bucket of distances.
    """
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position, scaled_size_sqrt

    heads, tokens, span = module.num_attention_heads, query.shape[1], module.pos_ebd_size
    # Of a query from its keys, from left to right.
    distance = torch.arange(tokens - 1, -tokens, -1, device=query.device)
    if module.position_buckets > 0:
        distance = make_log_bucket_position(distance, module.position_buckets, module.max_relative_positions)
    scale = scaled_size_sqrt(query, scale_factor)

    def scores(states: Tensor, project: Callable[[Tensor], Tensor], numbers: Tensor) -> Tensor:
        rows = project(rel_embeddings[: 2 * span])[numbers.long().clamp(0, 2 * span - 1)]
        by_head = states.unflatten(0, (-1, heads))
        found = torch.einsum("rhtd,nhd->rhtn", by_head, rows.unflatten(-1, (heads, -1)))
        return shifted(found).flatten(0, 1) / scale.to(found.dtype)

    found: Tensor | int = 0
    if "c2p" in module.pos_att_type:
        found = scores(query, module.key_proj if module.share_att_key else module.pos_key_proj, span + distance)
    if "p2c" in module.pos_att_type:
        project = module.query_proj if module.share_att_key else module.pos_query_proj
        found = found + scores(key, project, span - distance).transpose(-1, -2)
    return found


@contextlib.contextmanager
def by_distance(model: torch.nn.Module) -> Iterator[None]:
    """Let a model's attention of this kind, if it has such, compute so while the context lasts."""
    named = (part for part in model.modules() if type(part).__name__ == "DisentangledSelfAttention")
    parts = [part for part in named if type(part).__module__ == "transformers.models.deberta_v2.modeling_deberta_v2"]
    for part in parts:
        part.disentangled_attention_bias = partial(bias, part)
    try:
        yield
    finally:
        for part in parts:
            del part.disentangled_attention_bias
