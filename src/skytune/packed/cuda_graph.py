"""Captures a function in a CUDA graph, or says why that cannot be and leaves everything as it was.

A graph replays kernels, not Python. What a function decides, counts or draws on the host is frozen when it is captured:
a branch on a tensor's value fails by itself, since the host would have to wait for the device; a counter or a random
number on the host does not, and is looked for here. What a function sends to the device in every call (a table of
positions made on the CPU), and how many elements a mask selects, is taken to stay the same, and checked.
"""

import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

DRAWS = 8
"""Times that a loss is computed to see whether random numbers of the host change it."""


class NotCapturable(Exception):
    """Something that a graph cannot replay; the message is the end of a sentence."""


@dataclass
class Graph:
    """A captured function."""

    graph: torch.cuda.CUDAGraph
    answers: "HostAnswers"
    """What the graph reads of it lies here."""

    def replay(self) -> None:
        """Do it again."""
        self.graph.replay()

    def reset(self) -> None:
        """Let go of it."""
        self.graph.reset()


@dataclass(eq=False)
class HostAnswers(TorchDispatchMode):
    """What a function asks the host for in the midst of its work: written down while it runs, answered from there while
    it is captured, where nobody waits and nothing may be sent.

    Tensors that are sent to the device must be the same each time. How many elements a mask selects is checked on the
    device in every replay. Attention's gradients are added up in a fixed order: 1 to 3% of a step on long rows (H200).
    """

    changed: Tensor
    """Number on the device, set to 1 by a replay in which a mask selects another number of elements than it did."""
    capturing: bool = False
    sent: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """What was sent, and where it lies on the device, in order."""
    sizes: list[int] = field(default_factory=list)
    """How many elements masks selected, in order."""
    at: list[int] = field(default_factory=lambda: [0, 0])
    """How many of both were asked for while capturing."""

    def __post_init__(self) -> None:
        super().__init__()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled code stays compiled while this looks on; torch would go back to eager."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, aten = kwargs or {}, torch.ops.aten
        if func.name().endswith("backward") and ("attention" in func.name() or "attn" in func.name()):
            with in_fixed_order():
                return func(*args, **kwargs)
        try:
            if func is aten._to_copy.default and _on_host(args[0]):
                device = kwargs.get("device")
                if device is not None and torch.device(device).type != "cpu":
                    return self._sent(args[0], lambda: func(*args, **kwargs))
            elif func is aten.copy_.default and _on_host(args[1]) and not _on_host(args[0]):
                there = self._sent(args[1], lambda: args[1].to(args[0].device))
                return func(args[0], there, *args[2:], **kwargs)
            elif func is aten.nonzero.default and not _on_host(args[0]):
                return self._nonzero(args[0])
            elif func in (
                aten.index.Tensor,
                aten.index_put.default,
                aten.index_put_.default,
                aten._index_put_impl_.default,
            ):
                if not _on_host(args[0]):
                    return func(args[0], self._indices(args[1]), *args[2:], **kwargs)
            elif func is aten.unique_consecutive.default and len(args) == 1 and not kwargs and not _on_host(args[0]):
                flat = args[0].flatten()
                new = torch.cat([torch.ones_like(flat[:1], dtype=torch.bool), flat[1:] != flat[:-1]])
                none = flat.new_empty(0, dtype=torch.int64)
                return flat[self._nonzero(new)[:, 0]], none, none
            return func(*args, **kwargs)
        except Exception as error:
            if not self.capturing or isinstance(error, NotCapturable):
                raise
            raise NotCapturable(f"{reason_of(error)}, in {func}") from error

    def _sent(self, host: Tensor, send: Callable[[], Tensor]) -> Tensor:
        """Return a host tensor on the device."""
        if not self.capturing:
            self.sent.append((host.clone(), send()))
            return self.sent[-1][1].clone()
        before, there = self._next(0, self.sent)
        if not torch.equal(before, host):
            raise NotCapturable("its forward pass sends numbers to the device that change from call to call")
        return there.clone()

    def _nonzero(self, mask: Tensor) -> Tensor:
        """Return where a mask is not 0, as many places as it were when written down."""
        if not self.capturing:
            found = torch.nonzero(mask)
            self.sizes.append(len(found))
            return found
        size, there = self._next(1, self.sizes), mask.flatten() != 0
        self.changed.copy_(torch.maximum(self.changed, (there.sum() != size).to(self.changed.dtype)))
        places, found = torch.argsort(there.logical_not().to(torch.int8), stable=True)[:size], []
        for width in reversed(mask.shape):  # torch.unravel_index would send the shape to the device
            found.append(places % width)
            places = places // width
        return torch.stack(found[::-1], 1) if found else places[:, None][:, :0]

    def _indices(self, indices: list[Tensor | None]) -> list[Tensor | None]:
        """Return indices with places instead of masks."""
        found: list[Tensor | None] = []
        for index in indices:
            masks = index is not None and index.dtype in (torch.bool, torch.uint8)
            found += list(self._nonzero(index).unbind(1)) if masks and index is not None else [index]
        return found

    def _next(self, kind: int, kept: list[Any]) -> Any:
        if self.at[kind] == len(kept):
            raise NotCapturable("its forward pass does not ask for the same in every call")
        self.at[kind] += 1
        return kept[self.at[kind] - 1]


def _on_host(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu"


@contextmanager
def _seen_by_modes() -> Iterator[None]:
    """Have `torch.tensor(..., device=)` send what it made in a way that `HostAnswers` sees, and transformers make the
    attention masks that it makes while something is captured before that too: of what a mask of padding holds, whatever
    that is, and none where nothing is padded. (By itself it looks into them before, and makes one always while it is
    captured: other kernels, and slower ones.)"""
    made, masks = torch.tensor, sys.modules.get("transformers.masking_utils")
    traces: Any = getattr(masks, "is_tracing", None)

    def tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None or torch.device(device).type == "cpu":
            return made(data, device=device, **kwargs)
        return made(data, **kwargs).to(device)

    torch.tensor = tensor
    if traces is not None:
        masks.is_tracing = lambda mask=None: mask is not None  # type: ignore[union-attr]
    try:
        # TorchScript compiles anew what it has seen a few times, in the middle of a capture too.
        with torch.jit.optimized_execution(False):
            yield
    finally:
        torch.tensor = made
        if traces is not None:
            masks.is_tracing = traces  # type: ignore[union-attr]


@contextmanager
def in_fixed_order() -> Iterator[None]:
    """Have torch's attention add up its gradients in the same order each time, which it does where torch is told to be
    deterministic: what a graph captures within stays so, and a resumed run gives the same to the bit."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def capture(run: Callable[[], None], changed: Tensor, pool: Any, stream: torch.cuda.Stream) -> Graph:
    """Return a function as a graph. It runs twice before: kernels are compiled, libraries warm up.

    Args:
        changed: see `HostAnswers`.
        pool: handle of the memory that graphs share (`torch.cuda.graph_pool_handle`).
        stream: on which all of it is done: always the same, since what accumulates gradients belongs to a stream.

    Raises:
        NotCapturable: it does something that a graph cannot; nothing is left of the attempt.
    """
    answers, here = HostAnswers(changed), torch.cuda.current_stream(stream.device)
    stream.wait_stream(here)
    with torch.cuda.stream(stream), _seen_by_modes():
        run()
        with answers:
            run()
    here.wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    answers.capturing = True
    first: Exception | None = None  # whatever ends a capture early makes its end fail too
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            try:
                with _seen_by_modes(), answers:
                    run()
            except Exception as error:
                first = error
                raise
    except Exception as error:
        _recover(here, pool)
        raise NotCapturable(reason_of(first or error)) from error
    return Graph(graph, answers)


def _recover(stream: torch.cuda.Stream, pool: Any) -> None:
    """Undo what a failed capture leaves: torch stops at the first error and neither goes back to the stream before, nor
    ends the pool's recording, nor tells the generator of random numbers that the capture is over."""
    torch.cuda.set_stream(stream)
    device = stream.device
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(device.index, pool)
    torch.cuda.default_generators[device.index].graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
    torch.cuda.synchronize(device)


def reason_of(error: Exception) -> str:
    """Return what went wrong, and in which line that is not torch's own, as the end of a sentence."""
    if isinstance(error, NotCapturable):
        return str(error)
    error = getattr(error, "inner_exception", error)  # what a compiler failed with
    torchs = str(Path(torch.__file__).parent)
    own = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((torchs, __file__))]
    place = f" ({own[-1].filename.rpartition('/')[2]}, line {own[-1].lineno})" if own else ""
    what = str(error).strip().partition("\n")[0] or "no reason given"
    return f"{type(error).__name__}: {what}{place}"


@contextmanager
def random_kept(device: torch.device) -> Iterator[None]:
    """Leave all random numbers as they were: of torch on both sides, of Python and of numpy."""
    states, python, numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        torch.set_rng_state(states)
        random.setstate(python)
        np.random.set_state(numbers)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)


def frozen_by_capture(module: nn.Module, loss: Callable[[], Tensor]) -> str:
    """Return what a graph of a module's forward pass would freeze, as the end of a sentence; empty if nothing.

    Leaves random numbers other than they were.

    Args:
        loss: runs the forward pass; draws the same random numbers on the device each time, and none that it seeds on
            the host.
    """
    loss()  # what is made in the first call alone may be
    before, draws = _attributes(module), _host_draws()
    expected = loss()
    after = _attributes(module)
    changed = sorted(name for name, value in after.items() if before.get(name) != value)
    if changed:
        return f"its forward pass changes an attribute ({changed[0]})"
    if all(map(_equal, draws, _host_draws())):
        return ""
    alike = []
    for seed in range(DRAWS):  # all of them, as several processes may have to compute together
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        alike.append(bool(torch.isclose(loss(), expected, rtol=1e-4, equal_nan=True)))
    return "" if all(alike) else "its forward pass draws random numbers on the CPU"


def _host_draws() -> tuple[Any, ...]:
    numbers: Any = np.random.get_state()
    return torch.default_generator.get_state(), random.getstate(), numbers[1:3]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(map(np.array_equal, one, other))


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Return plain attributes of all modules by value, and tensors by identity."""
    found: dict[str, Any] = {}
    for path, each in module.named_modules():
        for key, value in {**vars(each), **each._buffers}.items():
            name = f"{path}.{key}".lstrip(".")
            if isinstance(value, bool | int | float | str):
                found[name] = value
            elif isinstance(value, Tensor):
                found[name] = (value.data_ptr(), value.shape)
    return found
