"""torch.compile on many lengths: how often it compiles, and that the numbers stay the same."""

import contextlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from skytune.config import CompileConfig, ComputeConfig, RunConfig, from_dict
from skytune.job import JobDir
from skytune.training.compiling import bounded, compile_in_place, compiled_as_eager

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None,
    reason="torch.compile on a CPU needs a C++ compiler, and there is none",
)


class Here:
    """A launcher that needs no process."""

    def run(self, job: JobDir, compute: ComputeConfig) -> None:
        from accelerate.state import AcceleratorState

        from skytune.training.trainer import run_job

        AcceleratorState._reset_state(reset_partial_state=True)
        run_job(job, job.job, started=time.time(), asked=1)


COMMON: dict[str, Any] = {
    "rows": 150,
    "model": {"dropout": 0.0},
    "precision": "fp32",
    "log": {"every_steps": 1},
    "max_steps": 30,
    "epochs": 2,
    "batch": {"global_size": 8, "pad_multiple": 1, "bucket_batches": 50},
    "eval": {"batch_size": 4},
}


def losses(done: Any) -> list[float]:
    return [record["loss"] for record in done.history if record["kind"] == "step"]


@pytest.mark.slow
@pytest.mark.parametrize(("shapes", "most"), [(None, 4), (2, 8)], ids=["variable", "two-lengths"])
def test_it_does_not_compile_for_ever(
    run_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, shapes: int | None, most: int
) -> None:
    """What is counted is what torch captures, whatever then makes code of it."""
    from torch._dynamo.utils import counters

    compile_with = torch.nn.Module.compile
    monkeypatch.setattr("skytune.launch.run_job.LocalLauncher", Here)
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self, mode, **given: compile_with(self, backend="eager", **given)
    )
    torch._dynamo.reset()
    counters.clear()
    run_job(name="compiled", compile={"mode": "on", "shapes": shapes}, **COMMON)
    assert 1 <= counters["stats"]["unique_graphs"] <= most
    assert not counters["graph_break"]


@pytest.mark.soak
@pytest.mark.slow
@needs_compiler
def test_compiled_code_takes_the_same_steps(run_job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.utils import counters

    monkeypatch.setattr("skytune.launch.run_job.LocalLauncher", Here)
    common = {**COMMON, "max_steps": 8, "limit_eval_batches": 1}
    eager = run_job(name="eager", **common)
    torch._dynamo.reset()
    counters.clear()
    compiled = run_job(name="compiled", compile={"mode": "on"}, **common)
    assert counters["stats"]["unique_graphs"] >= 1
    assert losses(compiled) == pytest.approx(losses(eager), abs=1e-4)
    assert losses(compiled) != losses(eager)


def test_few_lengths() -> None:
    def multiple(longest: int, pad: int | None = None, device: str = "cuda", **values: Any) -> int | None:
        config = from_dict(RunConfig, {"compile": values, "batch": {"pad_multiple": pad}})
        return bounded(config, longest, device).batch.pad_multiple

    assert multiple(512) == 8
    assert multiple(512, mode="on") == 8
    assert multiple(512, mode="on", shapes=4) == 128
    assert multiple(66, mode="on", shapes=4) == 24
    assert multiple(66, mode="reduce_overhead") == 16
    for longest in (1, 7, 66, 511):
        for count in (1, 3, 8):
            assert -(-longest // multiple(longest, pad=1, mode="on", shapes=count)) <= count
    assert multiple(512, device="cpu") == 1
    assert multiple(512, device="cpu", mode="on") == 8
    assert multiple(512, pad=4, device="cpu") == multiple(512, pad=4) == 4


def test_all_kinds_of_batches_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length comes with full micro-batches, a step's last, an epoch's last, evaluation's full and last."""
    import torch._dynamo

    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **given: None)
    with torch._dynamo.config.patch(recompile_limit=8):  # pytest's own way would delete it in the end
        compile_in_place(torch.nn.Linear(1, 1), RunConfig(compile=CompileConfig(mode="on", shapes=3)))
        assert torch._dynamo.config.recompile_limit >= 3 * 5


def test_an_embedding_inside_compiled_code_is_left_to_torch():
    """Its gradient is added up in a fixed order there, not by the compiler's atomic operations; afterwards it is."""
    from functorch.compile import aot_module_simplified, make_boxed_func
    from torch._inductor.decomposition import select_decomp_table

    seen: list[str] = []

    def backend(graph, inputs):
        def keep(made, _inputs):
            seen.extend(str(node.target) for node in made.graph.nodes)
            return make_boxed_func(made.forward)

        return aot_module_simplified(graph, inputs, fw_compiler=keep, decompositions=select_decomp_table())

    bias = torch.nn.Embedding(4, 3)
    found = []
    for context in (compiled_as_eager, contextlib.nullcontext):
        torch._dynamo.reset()
        bias.zero_grad()
        seen.clear()
        with context():
            torch.compile(bias, backend=backend)(torch.tensor([1, 1, 3])).sum().backward()
        found.append((any("embedding_dense_backward" in name for name in seen), bias.weight.grad.tolist()))
    assert [own for own, _ in found] == [True, False]
    assert found[0][1] == found[1][1] == [[0.0] * 3, [2.0] * 3, [0.0] * 3, [1.0] * 3]
