"""All processes of a machine fetch one checkpoint into one folder at once."""

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skytune.checkpoint.broadcast import fetch
from skytune.checkpoint.manifest import step_name
from skytune.checkpoint.shards import load_document
from skytune.checkpoint.store import Found, Store
from skytune.config import UserError

FILES = {"model.safetensors": bytes(range(256)) * 4000, "optimizer.json": b'{"lr": 0.5}'}
MANY = 6


@pytest.fixture
def store() -> Store:
    store = Store.open(f"memory://{uuid.uuid4().hex}", "run-1")
    store.write(3, FILES)
    return store


@pytest.fixture
def reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each file was read from the store, which hands out small blocks with a pause in the middle."""
    counts: Counter[str] = Counter()
    blocks, pause = store.backend.blocks, threading.Event()

    def slowly(path: str) -> Iterator[bytes]:
        counts[path.rpartition("/")[2]] += 1
        data = b"".join(blocks(path))
        for start in range(0, len(data), len(data) // 4 + 1):
            yield data[start : start + len(data) // 4 + 1]
            pause.wait(0.02)

    monkeypatch.setattr(store.backend, "blocks", slowly)
    return counts


def at_once(what: Callable[[], Any]) -> list[Any]:
    """Return what each of several callers gets that begin together."""
    begin = threading.Barrier(MANY)

    def one(_: int) -> Any:
        begin.wait()
        return what()

    with ThreadPoolExecutor(MANY) as pool:
        return list(pool.map(one, range(MANY)))


def assert_whole(found: Found) -> None:
    assert {name: path.read_bytes() for name, path in found.files.items()} == FILES


def test_one_reads_the_store_and_the_others_wait_for_it(store: Store, reads: Counter[str], tmp_path: Path) -> None:
    for found in at_once(lambda: fetch(store, 3, tmp_path / "fetched")):
        assert_whole(found)
        assert load_document(found, "optimizer") == {"lr": 0.5}
    assert reads == dict.fromkeys(FILES, 1)
    fetch(store, 3, tmp_path / "fetched")
    assert reads == dict.fromkeys(FILES, 1), "what lies there whole is not read again"
    damaged = tmp_path / "fetched" / step_name(3) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert_whole(fetch(store, 3, tmp_path / "fetched"))
    assert reads == {"model.safetensors": 2, "optimizer.json": 1}


def test_without_locks_nobody_truncates_what_another_reads(
    store: Store, reads: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each then reads for itself; whoever has its files in hand never sees half a one."""

    def no_locks(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    path = tmp_path / "fetched" / step_name(3) / "model.safetensors"
    seen, ended = [], threading.Event()

    def look() -> None:
        while not ended.is_set():
            if path.exists():
                seen.append(path.read_bytes() == FILES["model.safetensors"])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        for found in at_once(lambda: fetch(store, 3, tmp_path / "fetched")):
            assert_whole(found)
    finally:
        ended.set()
        watcher.join()
    assert seen and all(seen)
    assert reads["model.safetensors"] > 1
    assert sorted(file.name for file in path.parent.iterdir()) == sorted(FILES), "nothing else is left"


def test_one_that_fails_does_not_hold_the_others_up(store: Store, tmp_path: Path) -> None:
    store.backend.write(f"run-1/{step_name(3)}/model.safetensors", b"w" * len(FILES["model.safetensors"]))

    def refused() -> str:
        with pytest.raises(UserError) as error:
            fetch(store, 3, tmp_path / "fetched")
        return str(error.value)

    assert all("model.safetensors is damaged" in line for line in at_once(refused))


def test_where_files_lie_on_this_machine_nothing_is_copied(tmp_path: Path) -> None:
    store = Store.open(f"file://{tmp_path}/store", "run-1")
    store.write(3, FILES)
    found = fetch(store, 3, tmp_path / "fetched")
    assert_whole(found)
    assert not (tmp_path / "fetched").exists()
