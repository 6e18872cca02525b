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


def _view(scores: Tensor, turned: bool) -> Tensor:
    """Return the memory of scores by distance as one by pair: what a row takes from begins a column further left than
    the row before took from."""
    tokens, (*outer, pitch, step) = scores.shape[-2], scores.stride()
    start = scores.storage_offset() + (tokens - 1) * step
    found = scores.as_strided((*scores.shape[:-1], tokens), (*outer, pitch - step, step), start)
    return found.transpose(-1, -2) if turned else found


@torch.library.custom_op("skytune::by_pair", mutates_args=())
def by_pair(scores: Tensor, turned: bool) -> Tensor:
    """Return [..., tokens, tokens] of scores by distance [..., tokens, 2 * tokens]: entry (i, j) is that of row i and
    column j - i + tokens - 1; where `turned`, entry (j, i).

    A compiler that looked inside would read them so in each of the kernels around, which takes several times as long.
    """
    return _view(scores, turned).clone(memory_format=torch.contiguous_format)


@torch.library.custom_op("skytune::by_pair_backward", mutates_args=())
def by_pair_backward(grad: Tensor, turned: bool) -> Tensor:
    """Return the gradient of what `by_pair` was given."""
    scores = grad.new_zeros(*grad.shape[:-1], 2 * grad.shape[-1])
    _view(scores, turned).copy_(grad)
    return scores


by_pair.register_fake(lambda scores, turned: scores.new_empty(*scores.shape[:-1], scores.shape[-2]))
by_pair_backward.register_fake(lambda grad, turned: grad.new_empty(*grad.shape[:-1], 2 * grad.shape[-1]))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.turned = inputs[1]


by_pair.register_autograd(lambda ctx, grad: (by_pair_backward(grad, ctx.turned), None), setup_context=_remember)


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

    heads, (_, tokens, size), span = module.num_attention_heads, query.shape, module.pos_ebd_size
    # Of a query from its keys, from left to right, and one more: matrix products want even numbers.
    distance = torch.arange(tokens - 1, -tokens - 1, -1, device=query.device)
    if module.position_buckets > 0:
        distance = make_log_bucket_position(distance, module.position_buckets, module.max_relative_positions)
    scale = scaled_size_sqrt(query, scale_factor)

    def scores(states: Tensor, project: Callable[[Tensor], Tensor], numbers: Tensor, turned: bool) -> Tensor:
        numbers = numbers.long().clamp(0, 2 * span - 1)
        rows = torch.nn.functional.embedding(numbers, project(rel_embeddings[: 2 * span]))
        by_head = states.view(-1, heads, tokens, size).transpose(0, 1).reshape(heads, -1, size)
        found = by_head @ rows.view(-1, heads, size).permute(1, 2, 0)
        pairs = by_pair(found.view(heads, -1, tokens, 2 * tokens), turned)
        return pairs.transpose(0, 1).flatten(0, 1) / scale.to(found.dtype)

    found: Tensor | int = 0
    if "c2p" in module.pos_att_type:
        found = scores(query, module.key_proj if module.share_att_key else module.pos_key_proj, span + distance, False)
    if "p2c" in module.pos_att_type:
        project = module.query_proj if module.share_att_key else module.pos_query_proj
        found = found + scores(key, project, span - distance, True)
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
