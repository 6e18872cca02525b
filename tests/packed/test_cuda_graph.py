"""What a graph would freeze, and constants of the host; capturing itself is for a GPU (benchmarks/gpu_check.py)."""

import random

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from skytune.packed.cuda_graph import (
    HostAnswers,
    NotCapturable,
    _seen_by_modes,
    frozen_by_capture,
    random_kept,
    reason_of,
)


class Own(torch.nn.Module):
    """A linear layer with a habit."""

    def __init__(self, habit: str) -> None:
        super().__init__()
        self.linear, self.habit, self.calls, self.first = torch.nn.Linear(4, 1), habit, 0, True
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.first = False  # in the first call alone
        if self.habit == "counts":
            self.calls += 1
        elif self.habit == "replaces":
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        elif self.habit == "updates":
            self.mean.mul_(0.9)
        draws = {
            "torch": lambda: float(torch.rand(())),
            "python": random.random,
            "numpy": lambda: float(np.random.rand()),
            "unused": lambda: float(torch.rand(())) * 0,
        }
        scale = 1 + draws[self.habit]() if self.habit in draws else 1.0
        return self.linear(x * scale).square().mean()


@pytest.mark.parametrize(
    ("habit", "reason"),
    [
        ("none", ""),
        ("updates", ""),
        ("unused", ""),
        ("counts", "changes an attribute (calls)"),
        ("replaces", "changes an attribute (mean)"),
        ("torch", "random numbers on the CPU"),
        ("python", "random numbers on the CPU"),
        ("numpy", "random numbers on the CPU"),
    ],
)
def test_what_a_graph_would_freeze_is_found(habit, reason):
    module, x = Own(habit), torch.randn(3, 4)
    before = torch.get_rng_state(), random.getstate()
    with random_kept(torch.device("cpu")), torch.no_grad():
        found = frozen_by_capture(module, lambda: module(x))
    assert (reason in found) if reason else found == ""
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()


def test_constants_of_the_host_are_sent_once():
    """The device is torch's `meta` here: what counts is what is asked of it."""
    answers = HostAnswers(torch.zeros(()))

    def call(number):
        with answers, _seen_by_modes():
            sent = [torch.arange(4).to("meta"), torch.empty(3, device="meta").copy_(torch.full((3,), float(number)))]
            sent.append(torch.tensor([7], device="meta"))
            return [tensor.device.type for tensor in sent]

    made = torch.tensor
    assert call(1) == ["meta"] * 3 and torch.tensor is made
    assert [kept[0].tolist() for kept in answers.sent] == [[0, 1, 2, 3], [1.0, 1.0, 1.0], [7]]
    answers.capturing = True
    call(1)
    assert answers.at == [3, 0]
    with pytest.raises(NotCapturable, match="not ask for the same in every call"):
        call(1)
    answers.at = [0, 0]
    with pytest.raises(NotCapturable, match="change from call to call"):
        call(2)


def selecting(x, mask, weight):
    """What classifiers of encoder-decoders do: the last of some marked positions of every row."""
    marked = x[mask, :]
    counts = torch.unique_consecutive(mask.sum(1))
    chosen = marked.view(len(x), -1, x.shape[-1])[:, -1] @ weight
    loss = chosen.square().sum() + x[mask.nonzero()[:, 0]].sum()
    loss.backward()
    grad, x.grad = x.grad, None
    return loss.detach(), grad, counts


def test_masks_are_answered_with_the_size_that_they_had_and_checked(monkeypatch):
    """On a CPU, where it is told that everything lies on a device."""
    monkeypatch.setattr("skytune.packed.cuda_graph._on_host", lambda value: False)
    answers, weight = HostAnswers(torch.zeros(())), torch.randn(3)
    rows = [torch.randn(2, 5, 3, requires_grad=True) for _ in range(3)]
    masks = [torch.zeros(2, 5, dtype=torch.bool) for _ in range(3)]
    for mask, places in zip(masks, ([[1, 3], [0, 2]], [[0, 4], [1, 2]], [[0, 1], [3, 4]]), strict=True):
        for row, where in enumerate(places):
            mask[row, where] = True
    with answers:
        selecting(rows[0], masks[0], weight)
    answers.capturing = True
    sizes = list(answers.sizes)
    assert sizes[:2] == [4, 1] and len(sizes) >= 4, "the backward pass selects too"
    for x, mask in zip(rows[1:], masks[1:], strict=True):
        answers.at = [0, 0]
        with answers:
            found = selecting(x, mask, weight)
        for one, other in zip(found, selecting(x, mask, weight), strict=True):
            torch.testing.assert_close(one, other)
    assert answers.changed == 0
    masks[1][0, 2], answers.at = True, [0, 0]
    with answers:
        selecting(rows[1], masks[1], weight)
    assert answers.changed == 1


def test_compiled_code_stays_compiled_while_it_looks_on():
    calls = []

    def compiler(graph, inputs):
        def run(*args):
            calls.append(1)
            return graph(*args)

        return run

    compiled = torch.compile(lambda x: x.sin().cos(), backend=compiler)
    x = torch.randn(3)
    compiled(x)
    with HostAnswers(torch.zeros(())):
        compiled(x)
    compiled(x)
    assert len(calls) == 3


def test_a_reason_names_the_line_of_ones_own():
    def forward():
        return torch.zeros(2).view(3)

    with pytest.raises(RuntimeError) as caught:
        forward()
    reason = reason_of(caught.value)
    assert reason.startswith("RuntimeError: shape") and "(test_cuda_graph.py, line" in reason


def test_attention_masks_are_made_as_while_something_is_captured(monkeypatch):
    """None where nothing is padded; where something may be, one that nobody had to look into."""
    from transformers import BertConfig, BertModel, ViTConfig, ViTModel, masking_utils

    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def noted(*args, attn_mask=None, **kwargs):
        seen.append(attn_mask)
        return attend(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    image = ViTModel(ViTConfig(**small, image_size=8, patch_size=4)).eval()
    text = BertModel(BertConfig(**small, vocab_size=9)).eval()
    ids = torch.ones(2, 4, dtype=torch.long)
    plain = text(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
    traces = masking_utils.is_tracing
    with _seen_by_modes():
        image(pixel_values=torch.zeros(1, 3, 8, 8))
        told = text(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
    assert [mask is None for mask in seen] == [True, True, False] and torch.allclose(plain, told, atol=1e-6)
    assert masking_utils.is_tracing is traces


class Order(TorchDispatchMode):
    """Writes down which operations were told to add up in a fixed order."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, bool] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.told[func.name().partition("::")[2]] = torch.are_deterministic_algorithms_enabled()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("compiled", [False, True])
def test_attention_alone_adds_up_its_gradients_in_a_fixed_order(compiled):
    """Also within compiled code, and in the thread of the backward pass; other operations may have no such order."""
    projection = torch.nn.Linear(8, 8)

    def attend(x):
        return torch.nn.functional.scaled_dot_product_attention(projection(x), x, x).sum()

    if compiled:
        torch._dynamo.reset()
        attend = torch.compile(attend, backend="aot_eager")
    attend(torch.randn(1, 2, 5, 8)).backward()
    with Order() as order, HostAnswers(torch.zeros(())):
        attend(torch.randn(1, 2, 5, 8)).backward()
    assert order.told.pop("_scaled_dot_product_flash_attention_for_cpu_backward")
    assert len(order.told) > 4 and not any(order.told.values())
    assert not torch.are_deterministic_algorithms_enabled()
