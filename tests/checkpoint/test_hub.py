"""A store on the Hub, against a server that speaks the routes it needs: repository, tree, commit, LFS, file."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skytune.checkpoint.backends import hub as hub_module
from skytune.checkpoint.backends.hub import HubBackend
from skytune.checkpoint.lease import LeaseHeld, acquire
from skytune.checkpoint.resume import runs
from skytune.checkpoint.retry import Retry
from skytune.checkpoint.store import Store, rotate
from skytune.config import NotReachable, UserError

FAST = Retry(deadline_seconds=1, first_seconds=0.02, longest_seconds=0.1)

BRIEF = Retry(deadline_seconds=0.2, first_seconds=0.02, longest_seconds=0.1)


@pytest.fixture
def hub(start_hub: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(hub_module, "_patience", 60.0)
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


SILENT = {
    "repository": ("GET", "/api/models/"),
    "rights": ("GET", "/auth-check"),
    "listing": ("GET", "/tree/"),
    "reading": ("GET", "/resolve/"),
    "batch": ("POST", "/objects/batch"),
    "content": ("PUT", "/blob/"),
    "commit": ("POST", "/commit/"),
}


@pytest.fixture
def silent(hub: Any) -> Iterator[Callable[[str], None]]:
    """Return a function that lets the Hub accept requests of one kind and never answer, nor read on."""
    go, ended = threading.Event(), threading.Event()
    # A client that waits for ever is given what it waits for, and fails the test.
    timer = threading.Timer(300, lambda: (ended.set(), go.set()))
    timer.start()

    def fall_silent(kind: str) -> None:
        method, part = SILENT[kind]
        hub.fault = lambda m, path: go.wait(600) and None if m == method and part in path else None

    yield fall_silent
    assert not ended.is_set(), "somebody waited without end"
    timer.cancel()
    go.set()


@pytest.mark.parametrize("kind", SILENT)
def test_a_hub_that_falls_silent_counts_as_away(hub, silent, kind, tmp_path, caplog):
    """Whatever it was asked: `Retry` alone decides how long that lasts, and what was there is intact."""
    store = Store(HubBackend.open("hf://me/run-store/deep/folder", 0.3), "run-1", BRIEF)
    store.write(1, {"model.safetensors": bytes(100), "optimizer.safetensors": b"o"})
    silent(kind)
    start = time.monotonic()
    with pytest.raises(NotReachable, match=r"^hf://me/run-store/deep/folder/run-1: gave up on .* no progress for 0"):
        store.check_writable()
        acquire(store, "launch-1")
        store.newest(into=tmp_path)
        # Two large files, which go up in threads of the client's own; more than the connection takes in one go.
        store.write(2, {"model.safetensors": bytes(8 * 2**20), "optimizer.safetensors": bytes(8 * 2**20 + 1)})
    assert time.monotonic() - start < 200
    assert "Retry 1/5" not in caplog.text, "the client tries again by itself"
    hub.fault = None
    assert store.newest().manifest.step == 1
    store.write(2, {"model.safetensors": bytes(200)})
    assert store.newest().manifest.step == 2


def test_other_requests_are_left_as_they_are(hub):
    """Downloads of models and data sets: no timeouts, and the request ids that the client gives them."""
    from huggingface_hub import HfApi, close_session, get_session

    store = Store(HubBackend.open("hf://me/run-store", 0.3), "run-1", BRIEF)
    HubBackend.open("hf://me/other", 0.3)
    store.write(1, {"model.safetensors": bytes(100)})
    for _ in range(2):
        assert get_session().timeout.read is None and get_session().event_hooks["request"]
        hub.fault = lambda method, path: time.sleep(1.0)
        assert HfApi(endpoint=hub.url, token="hf_right").repo_info("me/run-store").sha
        with pytest.raises(NotReachable):
            store.steps()
        close_session()  # as the library does where a connection fails
