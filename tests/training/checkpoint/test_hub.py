"""A store on the Hub, against a server that speaks the routes it needs: repository, tree, commit, LFS, file."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from skytune.config import UserError
from skytune.training.checkpoint.lease import LeaseHeld, acquire
from skytune.training.checkpoint.opening import runs
from skytune.training.checkpoint.retry import Retry
from skytune.training.checkpoint.rotation import rotate
from skytune.training.checkpoint.store import Store

FAST = Retry(deadline_seconds=1, first_seconds=0.02, longest_seconds=0.1)


@pytest.fixture
def hub(start_hub: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    server = start_hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    return server


@pytest.fixture
def store(hub: Any) -> Store:
    return Store.open("hf://me/run-store/deep/folder", "run-1", retry=FAST)


def write(store: Store, step: int, **more: Any) -> None:
    files = {"model.safetensors": b"w%d" % step * 300, "optimizer.json": b"[%d]" % step}
    store.write(step, files, state=more)


def test_a_private_repository_is_made_and_each_checkpoint_is_one_commit(hub, store, tmp_path):
    assert store.newest() is None and store.steps() == []
    store.check_writable()
    assert hub.visibility == {"me/run-store": "private"} and hub.messages("me/run-store") == ["initial commit"]
    for step in (1, 2, 3):
        write(store, step, loss=step)
    assert hub.messages("me/run-store")[1:] == [f"Save run-1/step-0000000{step}" for step in (1, 2, 3)]
    found = Store.open("hf://me/run-store/deep/folder", "run-1").newest(into=tmp_path)
    assert found.manifest.step == 3 and found.manifest.state == {"loss": 3}
    assert found.files["model.safetensors"].read_bytes() == b"w3" * 300
    assert rotate(store, 1, newest=3, best=[1]) == [2] and store.steps() == [1, 3]
    assert runs("hf://me/run-store/deep/folder") == ["run-1"]
    store.clear()
    assert store.newest() is None
    assert list(hub.repos["me/run-store"][-1][2]) == [".gitattributes"]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_repository_that_is_there_is_used(hub, store, at_once):
    write(store, 1)
    hub.at_once = at_once
    other = Store.open("hf://me/run-store/deep/folder", "run-1", retry=FAST)
    write(other, 2)
    assert other.steps() == [1, 2]


def test_broken_ones_are_named(hub, store):
    write(store, 1)
    write(store, 2)
    files = dict(hub.repos["me/run-store"][-1][2])
    files["deep/folder/run-1/step-00000002/model.safetensors"] = b"w2" * 299 + b"w?"
    hub.push("me/run-store", "somebody edits", files)
    found = store.newest()
    assert found.manifest.step == 1 and found.skipped[0].startswith("step-00000002: model.safetensors is damaged")


def test_errors_for_a_while_are_outlasted_and_forever_break_nothing(hub, store):
    write(store, 1)
    hub.failing = [500, 503, 429]
    write(store, 2)
    assert store.newest().manifest.step == 2
    hub.failing = [503] * 1000
    with pytest.raises(UserError, match="gave up on finishing step-00000003"):
        write(store, 3)
    hub.failing = []
    assert store.newest().manifest.step == 2


def test_what_does_not_pass_is_told_at_once(hub, store, monkeypatch):
    write(store, 1)
    hub.failing = [403]
    with pytest.raises(UserError, match=r"^hf://me/run-store/deep/folder/run-1: no permission for finishing"):
        write(store, 2)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    other = Store.open("hf://me/run-store/deep/folder", "run-1", retry=FAST)
    for attempt in (other.check_writable, other.newest):
        with pytest.raises(UserError, match="the Hub does not accept the token"):
            attempt()
    for url in ("hf://me", "hf://datasets/me/name", "hf://me/name@main"):
        with pytest.raises(UserError, match="hf://user/name"):
            Store.open(url, "run-1")


def test_offline_is_told_at_once(store, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        store.check_writable()


def test_a_lease_is_atomic(hub, store):
    held = acquire(store, "launch-1")
    assert held.atomic
    with pytest.raises(LeaseHeld):
        acquire(store, "launch-2")
    write(store, 1)
    held.renew()  # although the branch moved
    won, lost = [], []

    def attempt(number: int) -> None:
        try:
            won.append(acquire(store, f"launch-{number}"))
        except LeaseHeld:
            lost.append(number)

    held.release()
    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 3)
    won[0].release()


def test_several_processes_cannot_write_one_checkpoint(hub, store):
    """Each has its own commits: a manifest of all files would name some that no commit has."""
    with pytest.raises(UserError) as refused:
        store.stage(8, token="job-8")
    line = str(refused.value)
    assert line.startswith("hf://me/run-store/deep/folder/run-1: ") and "\n" not in line
    assert "cannot be written by several processes together; use another checkpoint.store" in line
    assert store.steps() == []
