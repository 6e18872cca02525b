"""The background writer: the loop pays for a copy, one save at a time, failures are told and never raised into it."""

import threading
import time

import pytest
import torch

from skytune.checkpoint import store as stores
from skytune.checkpoint.async_writer import SaveFailed, SaveSucceeded, Writer
from skytune.checkpoint.lease import acquire
from skytune.checkpoint.retry import Retry
from skytune.checkpoint.shards import load_document, open_tensors
from skytune.checkpoint.store import Stage, Store
from skytune.config import UserError


@pytest.fixture
def store(tmp_path):
    return Store.open(str(tmp_path), "run-1", retry=Retry(deadline_seconds=0.2, first_seconds=0.02))


@pytest.fixture
def gate(store, monkeypatch):
    """A store that writes only while the gate is open."""
    gate, write = threading.Event(), store.write
    monkeypatch.setattr(store, "write", lambda *args, **more: (gate.wait(600), write(*args, **more))[1])
    yield gate
    gate.set()


def weights(value: float) -> dict[str, torch.Tensor]:
    tensor = torch.full((4, 3), value)
    return {"embedding": tensor, "head": tensor, "turned": torch.arange(6.0).reshape(2, 3).T, "none": torch.zeros(0)}


def test_what_was_submitted_comes_back_although_it_changed_meanwhile(store, gate):
    writer = Writer(store, decisive={"seed": 7}, world_size=2)
    tensors = weights(1.0)
    writer.prepare({"model": tensors})
    files = {"model": tensors, "optimizer": {"step": torch.tensor(3.0)}}
    stall = writer.submit(3, files, {"loss": 0.5}, documents={"optimizer": {"a": 1}})
    assert writer.busy and 0 < stall < 300
    tensors["embedding"].fill_(9)
    gate.set()
    (saved,) = writer.close(timeout=600)
    assert isinstance(saved, SaveSucceeded) and saved.step == 3 and saved.stall_seconds == stall <= saved.seconds
    found = store.newest()
    assert found.manifest.state == {"loss": 0.5} and found.manifest.decisive == {"seed": 7}
    assert found.manifest.world_size == 2 and saved.bytes == found.manifest.bytes
    model = open_tensors(found, "model")
    assert torch.equal(model["embedding"], torch.full((4, 3), 1.0)) and torch.equal(model["head"], model["embedding"])
    assert torch.equal(model["turned"], tensors["turned"]) and model["none"].shape == (0,)
    assert open_tensors(found, "optimizer")["step"] == 3 and load_document(found, "optimizer") == {"a": 1}
    with pytest.raises(UserError, match=r"holds no ema\.safetensors"):
        open_tensors(found, "ema")


def test_rotation_and_events(store):
    writer = Writer(store, keep=2)
    for step in (1, 2, 3, 4):
        writer.submit(step, {"model": weights(step)}, {}, best=[1], wait=True)
    events = writer.poll()
    assert [event.step for event in events] == [1, 2, 3, 4] and events[-1].rotated == (2,)
    assert store.steps() == [1, 3, 4] and writer.poll() == []
    assert isinstance(writer.last, SaveSucceeded)


def test_a_second_save_waits_for_the_first_one(store, gate):
    writer = Writer(store)
    writer.submit(1, {"model": weights(1)}, {})
    threading.Timer(0.3, gate.set).start()
    assert writer.submit(2, {"model": weights(2)}, {}) > 0
    assert [event.step for event in writer.poll()][:1] == [1]
    assert [event.step for event in writer.close(600)][-1] == 2
    assert torch.equal(open_tensors(store.get(1), "model")["head"], weights(1)["head"])


def test_a_second_save_is_skipped_where_the_loop_must_not_wait(store, gate):
    writer = Writer(store, max_wait_seconds=2.0)
    writer.submit(1, {"model": weights(1)}, {})
    assert writer.submit(2, {"model": weights(2)}, {}) >= 2
    (skipped,) = writer.poll()
    assert isinstance(skipped, SaveFailed) and skipped.skipped and skipped.step == 2
    assert skipped.message.startswith("skipped: the save of step 1 is still running after 2 s")
    stalls = [writer.submit(step, {"model": weights(step)}, {}) for step in (3, 4)]
    assert max(stalls) < 2, "one save that hangs holds training up once, not once a save"
    assert [(event.step, event.skipped) for event in writer.poll()] == [(3, True), (4, True)]
    threading.Timer(0.2, gate.set).start()
    writer.submit(5, {"model": weights(5)}, {}, must=True)
    assert [event.step for event in writer.close(600)] == [1, 5]
    assert store.steps() == [1, 5]


def test_failures_are_told_and_the_next_save_is_tried(store, monkeypatch):
    writer = Writer(store)
    writer.submit(1, {"model": weights(1)}, {}, wait=True)

    def refuse(folder, workspace, data, completed):
        raise ConnectionResetError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(store.backend, "commit", refuse)
        writer.submit(2, {"model": weights(2)}, {}, wait=True)
    events = writer.poll()
    assert isinstance(events[1], SaveFailed) and "gave up on finishing step-00000002" in events[1].message
    assert writer.last is events[1] and store.newest().manifest.step == 1
    writer.submit(3, {"model": weights(3)}, {}, wait=True)
    assert isinstance(writer.last, SaveSucceeded) and store.newest().manifest.step == 3


def test_a_rotation_that_fails_is_a_warning(store, monkeypatch):
    writer = Writer(store, keep=1)
    writer.submit(1, {"model": weights(1)}, {}, wait=True)

    def refuse(folder):
        raise PermissionError(13, "no deleting here")

    monkeypatch.setattr(store.backend, "remove", refuse)
    writer.submit(2, {"model": weights(2)}, {}, wait=True)
    assert isinstance(writer.last, SaveSucceeded) and "no permission for deleting step-00000001" in writer.last.warning


def test_closing_does_not_wait_forever(store, gate):
    writer = Writer(store)
    writer.submit(1, {"model": weights(1)}, {})
    start = time.monotonic()
    (failed,) = writer.close(timeout=0.2)
    assert time.monotonic() - start < 300 and isinstance(failed, SaveFailed) and "not finished after" in failed.message


def test_who_lost_the_lease_does_not_write(store):
    lease = acquire(store, "launch-1")
    other = acquire(store, "launch-1")
    lease.renew()
    writer = Writer(store, lease=lease)
    writer.submit(1, {"model": weights(1)}, {}, wait=True)
    assert "has taken over this run" in writer.last.message and store.steps() == []
    lease.release()
    assert store.backend.read("run-1/lease.json")
    other.release()


@pytest.mark.parametrize("moment", ["beginning", "model.safetensors", "optimizer.json", "within a file", "finishing"])
def test_whose_files_were_cleared_away_by_another_says_that_it_was_taken_over(store, monkeypatch, moment):
    """It was silent in the middle of a save, and who came clears unfinished files away: each library that misses one
    has an error of its own (safetensors' is no OSError)."""
    lease, others = acquire(store, "launch-1"), []

    def takes_over():
        if not others:
            others.append(acquire(store, "launch-1"))
            assert store.sweep()

    put, commit, hashed = Stage.put, Stage.commit, stores.hash_file

    def put_first(stage, name, source):
        if (name == moment) or (moment == "beginning"):
            takes_over()
        return put(stage, name, source)

    def hash_first(path):
        if moment == "within a file":
            takes_over()
        return hashed(path)

    def commit_first(stage, *args, **about):
        if moment == "finishing":
            takes_over()
        return commit(stage, *args, **about)

    monkeypatch.setattr(Stage, "put", put_first)
    monkeypatch.setattr(Stage, "commit", commit_first)
    monkeypatch.setattr(stores, "hash_file", hash_first)
    writer = Writer(store, lease=lease)
    writer.submit(1, {"model": weights(1)}, {}, documents={"optimizer": {"a": 1}}, wait=True)
    assert "has taken over this run" in writer.last.message and writer.last.lost
    lease.release()
    others[0].release()


@pytest.mark.parametrize(("cause", "asked"), [(FileNotFoundError(2, "No such file"), 2), (ConnectionError("reset"), 1)])
@pytest.mark.parametrize("away", [False, True])
def test_who_still_has_the_lease_says_what_failed(store, monkeypatch, cause, asked, away):
    """And does not wait for a store again that was away already."""
    lease = acquire(store, "launch-1", expiry_seconds=4000.0, heartbeat_seconds=1000.0)
    looks, read = [], store.backend.read_version

    def write(*_, **__):
        raise UserError("writing step-00000001/optimizer.json failed") from cause

    def look(path):
        looks.append(path)
        if away and len(looks) > 1:
            raise PermissionError("away")
        return read(path)

    monkeypatch.setattr(store, "write", write)
    with monkeypatch.context() as patch:
        patch.setattr(store.backend, "read_version", look)
        writer = Writer(store, lease=lease)
        writer.submit(1, {"model": weights(1)}, {}, wait=True)
    assert "optimizer.json failed" in writer.last.message and not writer.last.lost and len(looks) == asked
    lease.release()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_copies_from_a_gpu_are_pinned_and_right(store):
    writer = Writer(store)
    tensor = torch.arange(10.0, device="cuda")
    writer.submit(1, {"model": {"t": tensor}}, {})
    tensor.zero_()
    writer.close(600)
    assert torch.equal(open_tensors(store.newest(), "model")["t"], torch.arange(10.0))
    assert writer._buffers["model", "t"].is_pinned()


def test_files_that_are_too_large_for_the_store_are_refused_before_training(store, monkeypatch):
    monkeypatch.setattr(store.backend, "largest_file", 100)
    writer = Writer(store)
    writer.prepare({"model": {"a": torch.zeros(25)}})
    with pytest.raises(UserError, match=r"model\.safetensors would have 0 GB, .*; use another checkpoint.store"):
        writer.prepare({"model": {"a": torch.zeros(25), "b": torch.zeros(1)}})
