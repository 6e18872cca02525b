"""Tensors in pieces: any region comes back from any cut, and a checkpoint that lacks a piece is none."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from skytune.checkpoint.async_writer import SaveFailed, SaveSucceeded
from skytune.checkpoint.optimizer_state import flatten_optimizer, join_states, restore_optimizer, state_names
from skytune.checkpoint.sharded_writer import Board, ShardWriter
from skytune.checkpoint.shards import (
    Stored,
    index_of,
    join_indexes,
    load_document,
    local_piece,
    open_tensors,
    pieces,
)
from skytune.checkpoint.store import Store
from skytune.config import UserError


def cut(tensor: torch.Tensor, parts: int) -> list[tuple[int, torch.Tensor]]:
    """Return (first row, rows) of every part, as `fully_shard` cuts: the last ones may be short or empty."""
    chunk = -(-len(tensor) // parts)
    return [(min(i * chunk, len(tensor)), tensor[i * chunk : (i + 1) * chunk].contiguous()) for i in range(parts)]


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), saved=st.integers(1, 5), loaded=st.integers(1, 5), ndim=st.integers(1, 3))
def test_any_cut_from_any_other(
    tmp_path_factory: pytest.TempPathFactory, rows: int, saved: int, loaded: int, ndim: int
) -> None:
    whole = torch.randn([rows, 3, 2][:ndim])
    folder = tmp_path_factory.mktemp("pieces")
    indexes, files = [], {}
    for number, (first, part) in enumerate(cut(whole, saved)):
        name = f"part-{number}.safetensors"
        if not part.numel():
            continue
        save_file({"t": part, "step": torch.tensor(3.0)}, folder / name)
        files[name] = folder / name
        entry = {"file": name, "offset": [first] + [0] * (ndim - 1), "shape": list(part.shape)}
        indexes.append({"t": {"shape": list(whole.shape), "pieces": [entry]}})
    step = {"shape": [], "pieces": [{"file": "part-0.safetensors", "offset": [], "shape": []}]}
    stored = Stored(files, {**join_indexes(indexes), "step": step})
    assert torch.equal(stored["t"], whole)
    assert float(stored["step"]) == 3.0
    for first, part in cut(whole, loaded):
        found = stored.region("t", (first, *[0] * (ndim - 1)), tuple(part.shape))
        assert torch.equal(found, part)
        assert found.dtype == whole.dtype


def test_a_missing_piece_is_an_error() -> None:
    piece = {"file": "f", "offset": [0, 0], "shape": [2, 3]}
    with pytest.raises(UserError, match="w: the processes hold 6 of its 12 numbers"):
        join_indexes([{"w": {"shape": [4, 3], "pieces": [piece]}}, {}])


def test_a_plain_tensor_is_saved_by_one_process() -> None:
    tensors = {"b": torch.ones(3), "s": torch.tensor(1.0)}
    assert set(pieces(tensors, main=True)) == {"b", "s"}
    assert pieces(tensors, main=False) == {}
    assert index_of(pieces(tensors, main=True), "f")["b"] == {
        "shape": [3],
        "pieces": [{"file": "f", "offset": [0], "shape": [3]}],
    }


def test_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not fit: w is \[2\] there, \[3\] here"):
        save_file({"w": torch.zeros(2)}, tmp_path / "w.safetensors")
        Stored.whole(tmp_path / "w.safetensors").part("w", local_piece(torch.zeros(3)))


class Memory:
    """What the processes' boards share, without processes."""

    def __init__(self) -> None:
        self.messages: dict[str, Any] = {}

    def set(self, key: str, value: str) -> None:
        self.messages[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self.messages for key in keys)

    def get(self, key: str) -> str:
        return self.messages[key]


def writers(folder: Path, memory: Memory, count: int = 2, **options: Any) -> list[ShardWriter]:
    found = []
    for rank in range(count):
        board = Board(rank, 1)
        board.size, board._store = count, memory
        own = ("optimizer",)
        found.append(
            ShardWriter(Store.open(str(folder), "run"), board, keep=2, decisive={}, lease=None, own=own, **options)
        )
    return found


def parts() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Two optimizers' states of one model of which each process has a half, as `optimizer_sharding` gives them."""
    weights = [torch.nn.Parameter(torch.randn(3)) for _ in range(2)]
    optimizer = torch.optim.AdamW(weights)
    for weight in weights:
        weight.grad = torch.ones(3)
    optimizer.step()
    tensors, values = flatten_optimizer(optimizer)
    halves = []
    for number in range(2):
        names = [name for name, owner in state_names(values).items() if owner == number]
        state = {"dict": [item for item in values["state"]["dict"] if item[0] == number]}
        halves.append(({name: tensors[name] for name in names}, {**values, "state": state}))
    assert join_states([half[1] for half in halves]) == values
    return halves


def submit(writer: ShardWriter, half: tuple[dict[str, Any], dict[str, Any]]) -> None:
    tensors, values = half
    model = {"w": torch.arange(3.0)}
    writer.submit(5, {"model": model, "optimizer": tensors}, {"step": 5}, documents={"optimizer": values}, wait=False)


def test_all_processes_make_one_checkpoint(tmp_path: Path) -> None:
    both, halves = writers(tmp_path, Memory()), parts()
    for writer, half in zip(both, halves, strict=True):
        submit(writer, half)
    (first,), (second,) = [writer.close(timeout=600) for writer in both]
    assert isinstance(first, SaveSucceeded), first
    assert isinstance(second, SaveSucceeded), second
    found = Store.open(str(tmp_path), "run").get(5)
    assert found.manifest.world_size == 2
    assert torch.equal(open_tensors(found, "model")["w"], torch.arange(3.0))
    stored = open_tensors(found, "optimizer")
    assert {name: torch.equal(stored[name], value) for half in halves for name, value in half[0].items()} == {
        name: True for half in halves for name in half[0]
    }
    names = {path.name for path in (tmp_path / "run" / "step-00000005").iterdir()}
    assert "model-rank-00001-of-00002.safetensors" not in names  # it had nothing of its own
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".step")]


def test_an_optimizer_without_tensors_comes_back_as_one(tmp_path: Path) -> None:
    """Of an SGD without momentum there is nothing to cut up."""
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(3)
    optimizer.step()
    both = writers(tmp_path, Memory())
    for writer in both:
        submit(writer, flatten_optimizer(optimizer))
    assert [type(writer.close(timeout=600)[0]) for writer in both] == [SaveSucceeded, SaveSucceeded]
    found = Store.open(str(tmp_path), "run").get(5)
    index = json.loads(found.files["shards.json"].read_text())
    assert index["optimizer"] == {}
    values = load_document(found, "optimizer")
    restore_optimizer(torch.optim.SGD([weight], lr=0.2), open_tensors(found, "optimizer"), values)
    with pytest.raises(UserError, match="holds no ema"):
        open_tensors(found, "ema")


def test_a_silent_process_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    both = writers(tmp_path, Memory(), patience=0.2)
    submit(both[0], parts()[0])
    (event,) = both[0].close(timeout=600)
    assert isinstance(event, SaveFailed)
    assert "process 1 did not write its part within" in event.message
    assert Store.open(str(tmp_path), "run").newest() is None


def test_a_process_that_fails_tells_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both, halves = writers(tmp_path, Memory(), patience=20), parts()
    monkeypatch.setattr(both[1].store, "stage", lambda *a, **k: (_ for _ in ()).throw(UserError("the disk is full")))
    submit(both[1], halves[1])
    submit(both[0], halves[0])
    events = [writer.close(timeout=600)[0] for writer in both]
    assert [type(event) for event in events] == [SaveFailed, SaveFailed]
    assert "process 1 could not write its part: the disk is full" in events[0].message
    assert Store.open(str(tmp_path), "run").newest() is None


def test_states_that_nobody_wrote_are_noticed(tmp_path: Path) -> None:
    both, halves = writers(tmp_path, Memory()), parts()
    both[1].own = frozenset()  # as if its plain tensors were copies of rank 0's
    for writer, half in zip(both, halves, strict=True):
        submit(writer, half)
    events = [writer.close(timeout=600)[0] for writer in both]
    assert isinstance(events[0], SaveFailed)
    assert "no process wrote AdamW.state.1" in events[0].message


def test_a_store_of_one_process_alone_is_refused() -> None:
    board = Board(0, 1)
    board.size, board._store = 2, Memory()
    with pytest.raises(UserError, match="which needs a folder or s3://"):
        ShardWriter(Store.open("memory://x", "run"), board, keep=1, decisive={}, lease=None)


def test_messages_are_plain_json() -> None:
    memory = Memory()
    board = Board(0, 1)
    board._store = memory
    board.post("a", {"b": [1]})
    assert json.loads(memory.messages["a"]) == {"b": [1]}
    assert board.read("a", 0) == {"b": [1]}
    later = threading.Timer(0.1, lambda: board.post("late", 1))
    later.start()
    assert board.read("late", 5) == 1
    assert board.read("never", 0.05) is None


def test_processes_that_met_in_a_file_leave_word_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one machine: nothing listens at a port there."""
    monkeypatch.setenv("SKYTUNE_RENDEZVOUS", str(tmp_path / "workers"))
    boards = []
    for rank in (0, 1):
        monkeypatch.setattr(Board, "made", 0)  # each is the first one of its process
        boards.append(Board(rank, 2))
    boards[0].post("token", {"a": [1]})
    assert boards[1].read("token", 5.0) == {"a": [1]}
    assert boards[1].read("other", 0.0) is None
