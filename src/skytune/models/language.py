"""What a causal language model makes of tokens that count, without ever holding the logits of all of them.

A vocabulary of 49,152 makes 400 MB of float32 logits of 2,048 tokens, and as much again of their gradient: more than
all else. So the head is applied to some tokens at a time, and their gradient is taken at once, as Wijmans et al. 2024
("Cut your losses", arXiv:2411.09009) describe. `torch.nn.functional.linear_cross_entropy` does the like, but returns
the loss in the inputs' type, which in bfloat16 has three digits.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional

from .packed_attention import has_kernel, packed

IGNORED = -100
"""Label of a token that does not count."""

AT_ONCE, AT_MOST = 2**24, 2**28
"""Logits that are held at once: 64 MB in float32; on a GPU the more, the more memory it has, up to 1 GB."""


def logits_at_once(device: torch.device) -> int:
    """Return how many logits are held at once."""
    if device.type != "cuda":
        return AT_ONCE
    return min(AT_MOST, max(AT_ONCE, torch.cuda.get_device_properties(device).total_memory // 512))


class Slopes(torch.nn.Module):
    """Losses of some tokens, float32 [tokens], and the slopes of their sum by the logits [tokens, vocabulary], which
    have the logits' type. A module, so that it can be compiled as a model's blocks are: one pass, not seven."""

    compiles = True

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens whose target is -100 have no loss and no slope."""
        counted, wanted, wide = (targets != IGNORED)[:, None], targets.clamp(min=0)[:, None], logits.float()
        whole = wide.logsumexp(1, keepdim=True)
        losses = torch.where(counted, whole - wide.gather(1, wanted), 0.0).squeeze(1)
        ours = torch.arange(wide.shape[1], device=wide.device) == wanted
        return losses, torch.where(counted, (wide - whole).exp() - ours.float(), 0.0).to(logits.dtype)


class TokenLosses(torch.autograd.Function):
    """The negative log-likelihood of tokens after a linear head: their sum, and each of them (without gradient)."""

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, slopes_of: Slopes
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (scalar, [tokens]), both float32, for `hidden` [tokens, width], `weight` [vocabulary, width] and
        `targets` [tokens], -100 where nothing counts."""
        kind = torch.get_autocast_dtype(hidden.device.type) if torch.is_autocast_enabled(hidden.device.type) else None
        with torch.autocast(hidden.device.type, enabled=False):
            inputs, head = (hidden, weight) if kind is None else (hidden.to(kind), weight.to(kind))
            losses = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
            learns, trains = ctx.needs_input_grad[:2]
            by_hidden = torch.empty_like(hidden) if learns else None
            by_weight = torch.zeros_like(weight, dtype=torch.float32) if trains else None
            most = max(1, logits_at_once(hidden.device) // len(weight))
            size = max(1, -(-len(hidden) // -(-len(hidden) // most)))  # pieces of like size
            for start in range(0, len(hidden), size):
                here = slice(start, start + size)
                losses[here], slopes = slopes_of(inputs[here] @ head.t(), targets[here])
                if by_hidden is not None:
                    by_hidden[here] = slopes @ head
                if by_weight is not None:
                    by_weight += slopes.t() @ inputs[here]
        ctx.save_for_backward(by_hidden, None if by_weight is None else by_weight.to(weight.dtype))
        ctx.mark_non_differentiable(losses)
        return losses.sum(), losses

    @staticmethod
    def backward(ctx: Any, slope: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients that the forward pass has made already, times the sum's."""
        return *(None if saved is None else saved * slope for saved in ctx.saved_tensors), None, None


def learn_tokens(model: Any, longest: int) -> None:
    """Have a causal language model of transformers answer with losses instead of logits, in place.

    Its forward then takes `input_ids` and `labels` [rows, width], of which -100 do not count, and returns the mean over
    those that do. `position_ids` that begin anew inside a row begin a sequence that does not see the one before it.
    Without labels it returns what `row_losses` needs. `plainly` gives its own forward back.

    Args:
        longest: tokens of the longest sequence.
    """
    model.forward = functools.partial(_forward, model, longest)
    model.token_slopes = Slopes()


@torch.no_grad()
def looks_ahead(model: Any) -> bool:
    """Whether what a model makes of a token depends on the tokens that come after it, as an encoder's does."""
    size = model.get_input_embeddings().num_embeddings
    first = torch.arange(6).remainder(size)[None]
    other = torch.cat([first[:, :-1], (first[:, -1:] + 1) % size], 1)
    training = model.training
    model.eval()
    found, changed = (next(iter(model(input_ids=ids).values()))[:, :-1] for ids in (first, other))
    model.train(training)
    return not torch.allclose(found, changed, atol=1e-4)


@contextlib.contextmanager
def plainly(model: Any) -> Iterator[Any]:
    """Let a model have its own forward while the context lasts: to generate, to be saved."""
    ours = vars(model).pop("forward")
    try:
        yield model
    finally:
        model.forward = ours


def row_losses(output: Mapping[str, Any], labels: torch.Tensor) -> torch.Tensor:
    """Return the sum of the negative log-likelihoods of every row's labels, and their number: float32 [rows, 2].

    Args:
        output: what the model returned without labels.
        labels: [rows, width], -100 where nothing counts.
    """
    kept, targets = _counted(labels)
    _, losses = _losses(output, kept, targets, Slopes())
    found = torch.zeros(len(labels), 2, dtype=torch.float64, device=labels.device)
    found.index_add_(0, kept // labels.shape[1], torch.stack([losses.double(), torch.ones_like(losses).double()], 1))
    return found.float()


def _forward(
    model: Any,
    longest: int,
    input_ids: torch.Tensor,
    labels: torch.Tensor | None = None,
    position_ids: torch.Tensor | None = None,
    borders: torch.Tensor | None = None,
    kept: torch.Tensor | None = None,
) -> dict[str, Any]:
    """See `learn_tokens`; `borders` and `kept` are `TokenTable.stream`'s, which has them without asking a GPU."""
    inputs: dict[str, Any] = {"input_ids": input_ids, "use_cache": False}
    if position_ids is not None:
        inputs["position_ids"] = position_ids
    backbone, head = model.base_model, model.get_output_embeddings()
    by_kernel = borders is not None and has_kernel(input_ids.device)
    if by_kernel:
        # A mask, which nobody looks at, keeps transformers from making one: it would ask the device for positions.
        mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=input_ids.device)
        inputs |= {"cu_seq_lens_q": borders, "max_length_q": longest, "attention_mask": mask}
    with packed(model) if by_kernel else contextlib.nullcontext():
        if backbone is not model and type(head) is torch.nn.Linear and head.bias is None and not _changes_logits(model):
            output = {"hidden": backbone(**inputs)[0], "head": head.weight}
        else:
            output = {"logits": type(model).forward(model, **inputs).logits}
    if labels is None:
        return output
    # The first token of all is none that counts: where -1 fills up what is kept, nothing is learned.
    kept, targets = _counted(labels) if kept is None else (kept.clamp(min=0), labels.flatten()[kept + 1])
    total, _ = _losses(output, kept, targets, model.token_slopes)
    return {"loss": total / (targets != IGNORED).sum()}


def _changes_logits(model: Any) -> bool:
    """Whether a model does more to its logits than its head does (Gemma 2, Cohere, Granite)."""
    config = model.config.get_text_config()
    names = ("final_logit_softcapping", "logit_scale", "logits_scaling", "logits_scale", "lm_head_multiplier")
    return any(getattr(config, name, None) not in (None, 1.0) for name in names)


def _counted(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places in flattened labels after which one comes that counts, and those labels."""
    flat = labels.flatten()
    follows = flat != IGNORED
    follows[:: labels.shape[1]] = False  # a row's first token comes after nothing
    places = follows.nonzero().squeeze(1)
    return (places - 1).clamp(min=0), flat[places]


def _losses(
    output: Mapping[str, Any], kept: torch.Tensor, targets: torch.Tensor, slopes_of: Slopes
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the targets' negative log-likelihoods, and each of them, in float32."""
    if "hidden" in output:
        hidden = output["hidden"].flatten(0, 1).index_select(0, kept)
        total, losses = TokenLosses.apply(hidden, output["head"], targets, slopes_of)
        return total, losses
    logits = output["logits"].flatten(0, 1).index_select(0, kept).float()
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return losses.sum(), losses.detach()
