"""Memory that runs out: what a run makes of it, on one process and where it hits one of two (accelerate #1934).

The lack is injected at the edge: a model of ours asks torch's CPU allocator for 4 EiB as soon as it is given more rows
than it is said to bear, in its forward or in the middle of its backward pass, and gets the allocator's own refusal; or
it raises CUDA's error, which has a class of its own. One test really runs short: its process may not grow.
"""

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from skytune.config import UserError
from skytune.training.oom import ran_out
from skytune.training.outputs import read_predictions

OWN = '''
import os

import torch


def lack(kind):
    if kind == "cuda":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    torch.empty(2**62, dtype=torch.uint8)


class Greedy(torch.nn.Module):
    """A classifier that bears `rows` rows at once when it learns (after `calm` calls), `eval_rows` otherwise."""

    def __init__(self, num_labels, vocab_size, rows=None, eval_rows=None, where="forward", kind="cpu", rank=None,
                 calm=0, dropout=0.0, unused=True):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, 16)
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("calls", torch.zeros(()), persistent=False)  # differs by rank: DDP would send it around
        self.head = torch.nn.Linear(16, num_labels)
        self.never_used = torch.nn.Parameter(torch.ones(3, 3)) if unused else None
        self.rows, self.eval_rows, self.where, self.kind, self.calm = rows, eval_rows, where, kind, calm
        self.chosen = rank is None or int(os.environ.get("RANK", "0")) == rank

    def forward(self, input_ids, attention_mask, labels=None):
        limit = self.rows if self.training else self.eval_rows
        self.calm -= self.training
        self.calls += self.training
        short = self.chosen and limit is not None and len(input_ids) > limit and self.calm < 0
        mask = attention_mask.unsqueeze(-1)
        hidden = self.dropout((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))
        if short and (self.where == "forward" or not self.training):
            lack(self.kind)
        if short and self.training:
            hidden.register_hook(lambda gradient: lack(self.kind))
        logits = self.head(hidden)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Wide(torch.nn.Module):
    """Holds 40 MB a row when it predicts, 60 to 80 MB when it learns."""

    def __init__(self, num_labels, vocab_size):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, num_labels)

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask.unsqueeze(-1)
        logits = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        logits = logits + 0 * (logits[:, :1].expand(-1, 5_000_000) * 2).tanh().mean(1, keepdim=True)
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Confined:
    """Lets this process grow by `megabytes` more."""

    def __init__(self, megabytes):
        self.bytes = megabytes * 10**6

    def on_run_start(self, run):
        import ctypes
        import resource

        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX: a thread that begins would take 64 MB of it for its own heap
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + self.bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))
'''

Run = Callable[..., Any]


@pytest.fixture
def train(run_job: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that trains the module above; 68 rows in batches of 8, so the last of an epoch has 4 rows."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "greedy_own.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))

    def run(name: str = "run", auto: bool = True, batch: Any = None, **groups: Any) -> Any:
        model = {"_target_": "greedy_own.Greedy", "args": groups.pop("model", {})}
        common = {"epochs": 2, "log": {"every_steps": 1}, "optimizer": {"lr": 1e-2}, "checkpoint": {"select": "last"}}
        return run_job(
            rows=68,
            name=name,
            model=model,
            batch={"global_size": 8, "auto": auto, **(batch or {})},
            **{**common, **groups},
        )

    return run


def weights(done: Any) -> dict[str, np.ndarray]:
    return load_file(done.job.model / "model.safetensors")


def losses(done: Any) -> list[float]:
    return [record["loss"] for record in done.history if record["kind"] == "step"]


def furthest(a: Any, b: Any) -> float:
    first, second = weights(a), weights(b)
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


def cut(done: Any) -> tuple[int, int, int]:
    return done.result["micro_batch"], done.result["accumulation"], done.result["out_of_memory"]


@pytest.mark.parametrize(("where", "kind"), [("forward", "cpu"), ("backward", "cpu"), ("backward", "cuda")])
def test_the_micro_batch_is_halved_until_it_fits(train: Run, here: None, where: str, kind: str) -> None:
    plain = train("plain", auto=False)
    assert cut(plain) == (8, 1, 0)
    short = train("short", model={"rows": 3, "where": where, "kind": kind})
    assert cut(short) == (2, 4, 2)
    assert short.result["global_batch"] == 8
    assert (short.result["steps"], short.result["train_rows"]) == (18, 136)
    assert furthest(short, plain) < 1e-5
    assert np.abs(np.array(losses(short)) - losses(plain)).max() < 1e-6
    unused = weights(short)["never_used"]
    assert np.array_equal(unused, np.ones((3, 3)))  # no gradient, so no decay either


def test_a_retried_step_draws_what_it_would_have_drawn_in_pieces(train: Run, here: None) -> None:
    """Dropout on: bit for bit a run that was cut this way from the start."""
    small = train("small", auto=False, batch={"micro_size": 2}, model={"dropout": 0.3})
    short = train("short", model={"rows": 3, "where": "backward", "dropout": 0.3})
    assert cut(short) == (2, 4, 2)
    assert losses(short) == losses(small)
    assert furthest(short, small) == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_in_the_middle_of_a_run_and_after_a_resume(
    train: Run, here: None, kept: Any, cut_back: Any, workers: int
) -> None:
    """The loader had prepared steps ahead in the old size. A run that goes on starts with what was found."""
    loader = {"num_workers": workers}
    plain = train("plain", auto=False)
    model = {"rows": 4, "where": "backward", "calm": 5}
    short = train("short", model=model, checkpoint=kept(), loader=loader)
    assert cut(short) == (4, 2, 1)
    assert np.abs(np.array(losses(short)) - losses(plain)).max() < 1e-6
    assert furthest(short, plain) < 1e-5
    cut_back(after=8)
    again = train("short", model=model, checkpoint=kept(), loader=loader)  # calm for five calls again: 8 rows would do
    assert again.result["resumed_from"] == 8
    assert cut(again) == (4, 2, 1)
    assert losses(again) == losses(short)
    assert furthest(again, short) == 0


def test_one_line_without_batch_auto(train: Run, here: None) -> None:
    with pytest.raises(UserError) as caught:
        train(auto=False, model={"rows": 4, "calm": 2})
    says = (
        r"out of memory in step 3 of 18: a micro-batch of 8 rows of up to \d+ tokens does not fit into the memory of "
        r"cpu; batch\.auto=true finds one that does, batch\.micro_size=4 sets it \(the global batch stays 8\)"
    )
    assert re.fullmatch(says, str(caught.value))


def test_one_line_where_one_row_is_too_much(train: Run, here: None) -> None:
    with pytest.raises(UserError) as caught:
        train(model={"rows": 0})
    says = (
        r"out of memory in step 1 of 18: a micro-batch of 1 row of up to \d+ tokens does not fit into the memory of "
        r"cpu, and batch\.auto=true has nothing left to halve; shorter rows .*"
    )
    assert re.fullmatch(says, str(caught.value))


def test_evaluations_are_computed_in_parts(train: Run, here: None) -> None:
    plain = train("plain", auto=False)
    short = train("short", auto=False, model={"eval_rows": 3}, eval={"batch_size": 16})
    assert losses(short) == losses(plain)
    for split in ("validation", "test"):
        (rows, labels, logits), (same_rows, same_labels, expected) = (
            read_predictions(done.job.predictions(split)) for done in (short, plain)
        )
        assert np.array_equal(rows, same_rows) and np.array_equal(labels, same_labels)
        assert np.abs(logits - expected).max() < 1e-6
    with pytest.raises(
        UserError, match=r"^out of memory: one row of \d+ tokens does not fit .*, even for an evaluation"
    ):
        train("none", auto=False, model={"eval_rows": 0})


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a process from growing (RLIMIT_AS)")
def test_a_process_that_may_not_grow(train: Run, forked: None, run_job: Run) -> None:
    """Memory really runs out here; four rows fit only if nothing of the attempt with eight is left."""
    done = run_job(
        max_steps=3,
        model={"_target_": "greedy_own.Wide"},
        batch={"global_size": 8, "auto": True, "pad_multiple": 32},  # all rows of one width
        callbacks={"confined": {"_target_": "greedy_own.Confined", "megabytes": 400}},
        tracker={"names": []},  # which would be imported meanwhile
        log={"every_steps": 1},
    )
    assert cut(done) == (4, 2, 1)
    assert len(losses(done)) == 3
    log = (done.job.logs / "rank-0.log").read_text()
    assert "DefaultCPUAllocator: can't allocate memory" in log
    assert "out of memory in an evaluation: 8 rows at once instead of 16" in log


@pytest.fixture
def two() -> dict[str, Any]:
    """Settings of two real worker processes that exchange over gloo."""
    return {"launch": {"num_processes": 2, "threads": 1}}


def test_on_one_of_two_processes(train: Run, forked: None, two: dict[str, Any]) -> None:
    """Case 20. Rank 1 fails in its backward pass, rank 0 does not: both take the same smaller micro-batch."""
    plain = train("plain", auto=False)
    model = {"rows": 1, "eval_rows": 3, "where": "backward", "rank": 1, "calm": 3}
    short = train("short", model=model, **two)
    assert short.result["world_size"] == 2
    assert cut(short) == (1, 4, 2)
    assert (short.result["global_batch"], short.result["train_rows"]) == (8, 136)
    assert np.abs(np.array(losses(short)) - losses(plain)).max() < 1e-5
    assert furthest(short, plain) < 5e-5
    assert weights(short)["never_used"].min() == 1
    for rank, says in ((0, "on 1 of 2 processes: micro-batch 2 instead of 4, accumulation 2"), (1, "in an evaluation")):
        assert says in (short.job.logs / f"rank-{rank}.log").read_text()


@pytest.mark.parametrize(
    ("auto", "rows", "says"),
    [
        (True, 0, "a micro-batch of 1 row .* and batch.auto=true has nothing left to halve"),
        (False, 2, "a micro-batch of 4 rows .* batch.auto=true finds one that does, batch.micro_size=2 sets it"),
    ],
    ids=["nothing left", "not asked for"],
)
def test_two_processes_end_together_in_one_line(
    train: Run, forked: None, two: dict[str, Any], auto: bool, rows: int, says: str
) -> None:
    """The peer that has memory must not wait for the one that has none."""
    start = time.monotonic()
    with pytest.raises(UserError, match=f"^out of memory in step 4 of 18: {says}") as caught:
        train(auto=auto, model={"rows": rows, "where": "backward", "rank": 1, "calm": 3, "unused": auto}, **two)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 280  # gloo's own patience is 300 s (launch.timeouts.start)


@pytest.mark.parametrize(
    ("error", "lack"),
    [
        (lambda: torch.empty(2**62, dtype=torch.uint8), True),
        (lambda: np.empty(2**55), True),
        (lambda: bytes(2**60), True),
        (lambda: torch.ones(2, 3) @ torch.ones(2, 3), False),
        (lambda: [][0], False),
        (lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")), True),
        (lambda: (_ for _ in ()).throw(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling f")), True),
        (lambda: (_ for _ in ()).throw(RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)")), True),
        (lambda: (_ for _ in ()).throw(RuntimeError("std::bad_alloc")), True),
    ],
    ids=["torch", "numpy", "python", "shapes", "index", "cuda", "cublas", "mps", "c++"],
)
def test_what_counts_as_a_lack_of_memory(error: Callable[[], Any], lack: bool) -> None:
    with pytest.raises(Exception) as caught:
        error()
    assert ran_out(caught.value) is lack
