"""Writing, finding, breaking and rotating checkpoints, in every kind of store."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

import pytest

from skytune.checkpoint.manifest import step_name
from skytune.checkpoint.resume import runs
from skytune.checkpoint.store import Store, rotate
from skytune.config import UserError

everywhere = pytest.mark.parametrize("url", ["file", "memory", "s3"], indirect=True)
objects = pytest.mark.parametrize("url", ["memory", "s3"], indirect=True)


def write(store: Store, step: int, **more):
    files = {"model.safetensors": f"weights of {step} ".encode() * 50, "optimizer.json": f'{{"step": {step}}}'.encode()}
    return store.write(step, files, state={"step": step, **more}, decisive={"seed": 1})


def change(store: Store, step: int, name: str, data: bytes | None) -> None:
    """Do to a file what no program should."""
    path = f"{store.run_key}/{step_name(step)}/{name}"
    if data is None:
        store.backend.delete(path)
    else:
        store.backend.write(path, data)


@everywhere
def test_what_is_written_is_found(store, tmp_path):
    assert store.newest() is None and store.steps() == [] and store.completed() is None
    store.check_writable()
    for step in (9, 1000, 200):
        write(store, step, loss=0.5)
    assert store.steps() == [9, 200, 1000]
    found = store.newest(into=tmp_path / "into")
    assert found.manifest.step == 1000 and found.manifest.state == {"step": 1000, "loss": 0.5} and found.skipped == ()
    assert found.files["model.safetensors"].read_bytes() == b"weights of 1000 " * 50
    assert found.location.endswith("run-1/step-00001000")
    assert store.newest(before=1000).manifest.step == 200
    assert store.get(9).manifest.step == 9
    with pytest.raises(UserError, match=r"step-00000010.*steps in the store: 9, 200, 1000"):
        store.get(10)
    assert runs(store.backend.url) == ["run-1"]
    store.clear()
    assert store.newest() is None and store.steps() == []


@everywhere
def test_foreign_things_are_ignored(store):
    write(store, 5)
    for path in ("notes.txt", "step-7/manifest.json", ".step-00000008-123/manifest.json", "step-00000009.tmp/x"):
        store.backend.write(f"run-1/{path}", b"{}")
    assert store.steps() == [5]
    assert store.newest().manifest.step == 5
    assert rotate(store, 1) == []


@everywhere
@pytest.mark.parametrize("how", ["delete", "truncate", "zero", "flip"])
def test_each_file_broken_in_turn_is_named_and_the_one_before_is_used(store, how, tmp_path):
    write(store, 1)
    for name in ("model.safetensors", "optimizer.json", "manifest.json"):
        write(store, 2)
        data = store.backend.read(f"run-1/step-00000002/{name}")
        flipped = bytes([*data[:7], data[7] ^ 16, *data[8:]])
        change(store, 2, name, {"delete": None, "truncate": data[:-1], "zero": bytes(len(data)), "flip": flipped}[how])
        found = store.newest(into=tmp_path / "into")
        assert found.manifest.step == 1
        (line,) = found.skipped
        assert line.startswith("step-00000002: ")
        assert name in line or "not finished" in line
        assert b"of 1 " in found.files["model.safetensors"].read_bytes()
        store.delete(2)


@everywhere
def test_all_broken_stops_and_changes_nothing(store):
    for step in (1, 2):
        write(store, step)
        change(store, step, "optimizer.json", b"{}")
    with pytest.raises(UserError, match=r"no checkpoint there is whole.*2: optimizer.json has 2 bytes.*step-00000001"):
        store.newest()
    with pytest.raises(UserError, match="resume=never"):
        store.newest()
    assert store.steps() == [1, 2]


@everywhere
def test_all_manifests_or_all_folders_gone_is_not_a_fresh_start(store):
    write(store, 1)
    change(store, 1, "manifest.json", None)
    with pytest.raises(UserError, match="step-00000001"):
        store.newest()
    store.delete(1)
    with pytest.raises(UserError, match="step-00000001 was completed and is gone"):
        store.newest()


@objects
def test_a_save_cut_short_before_anything_was_complete_is_a_fresh_start(store):
    stage = store.stage(3)
    stage.put("model.safetensors", b"half a checkpoint")
    assert store.steps() == [3] and store.newest() is None
    write(store, 4)
    assert store.newest().skipped == ()
    assert store.sweep() == ["step-00000003"] and store.steps() == [4]


@objects
def test_a_lagging_store_is_not_valid_until_complete(store):
    write(store, 1)
    write(store, 2)
    path = "run-1/step-00000002/model.safetensors"
    data = store.backend.read(path)
    store.backend.delete(path)  # the manifest is visible, the big file is not yet
    found = store.newest()
    assert found.manifest.step == 1 and found.skipped == ("step-00000002: model.safetensors is missing",)
    store.backend.write(path, data)
    assert store.newest().manifest.step == 2


@everywhere
def test_rotation_keeps_the_newest_the_best_and_the_last_valid_one(store):
    for step in (10, 20, 30, 40):
        write(store, step)
    assert rotate(store, 2, newest=40, best=[10]) == [20]
    assert store.steps() == [10, 30, 40]
    assert rotate(store, 1, newest=40) == [10, 30]
    assert rotate(store, 1) == [] and store.newest().manifest.step == 40


@everywhere
def test_rotation_keeps_the_best_one_that_is_complete(store):
    """The save of the very best one may have failed, or its files may have been lost since."""
    for step in (10, 20, 30, 40):
        write(store, step)
    change(store, 20, "model.safetensors", None)
    assert rotate(store, 1, newest=40, best=[99, 20, 10, 30]) == [20, 30]
    assert store.steps() == [10, 40]
    write(store, 50)
    assert rotate(store, 1, newest=50, best=[50, 10]) == [10, 40]


@everywhere
def test_rotation_does_not_count_broken_ones_nor_touch_later_ones(store):
    for step in (10, 20, 30):
        write(store, step)
    change(store, 30, "model.safetensors", b"?" * 950)
    change(store, 20, "model.safetensors", b"weights of 20 " * 49 + b"weights?of 20 ")  # right size
    assert store.newest().manifest.step == 10
    write(store, 15)
    assert rotate(store, 2, newest=15) == []
    assert store.steps() == [10, 15, 20, 30]
    write(store, 25)
    assert rotate(store, 2, newest=25) == [10, 20]
    assert store.newest().manifest.step == 25


@everywhere
def test_the_same_step_again_never_leaves_a_moment_without_it(store, monkeypatch):
    """A save on a signal right after a resume: same files, other totals."""
    write(store, 5)
    removed = []
    delete = store.backend.delete
    monkeypatch.setattr(store.backend, "delete", lambda path: (removed.append(path), delete(path)))
    monkeypatch.setattr(store.backend, "remove", removed.append)
    write(store, 5, elapsed=7.0)
    assert removed == []
    assert store.newest().manifest.state == {"step": 5, "elapsed": 7.0}


@everywhere
def test_the_same_step_with_other_content_replaces_it(store):
    write(store, 5)
    store.write(5, {"model.safetensors": b"new"}, state={"again": True})
    found = store.newest()
    assert found.manifest.state == {"again": True} and list(found.manifest.files) == ["model.safetensors"]


@everywhere
def test_several_processes_write_one_checkpoint(store):
    with store.stage(8, token="job-8") as first, store.stage(8, token="job-8") as second:
        first_part = {"rank-0.safetensors": first.put("rank-0.safetensors", b"zero")}
        second_part = {"rank-1.safetensors": second.put("rank-1.safetensors", b"one")}
        assert store.newest() is None
        first.commit({**first_part, **second_part}, world_size=2)
    found = store.newest()
    assert sorted(found.manifest.files) == ["rank-0.safetensors", "rank-1.safetensors"]
    assert found.manifest.world_size == 2


def test_half_deleted_folders_and_temporary_ones_are_swept(tmp_path):
    store = Store.open(str(tmp_path), "run-1")
    write(store, 1)
    store.stage(2).put("model.safetensors", b"a process died here")
    (tmp_path / "run-1" / ".trash-step-00000000-1").mkdir()
    assert store.steps() == [1]
    assert len(store.sweep()) == 2
    assert sorted(os.listdir(tmp_path / "run-1")) == ["completed.json", "step-00000001"]


@objects
def test_files_that_a_killed_process_was_making_here_are_deleted(store):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = store.stage(1).workspace
    left = folder.with_name(folder.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
    left.mkdir()
    with store.stage(2):
        assert not left.exists() and folder.exists()
    folder.rmdir()


def test_a_failed_file_leaves_nothing(tmp_path):
    store = Store.open(str(tmp_path), "run-1")
    write(store, 1)

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(5, "Input/output error")

    with pytest.raises(UserError, match=r"writing step-00000002/model.safetensors failed.*Input/output error"):
        store.write(2, {"model.safetensors": fail})
    assert sorted(os.listdir(tmp_path / "run-1")) == ["completed.json", "step-00000001"]
    assert store.newest().manifest.step == 1


@objects
def test_a_full_disk_on_the_way_to_the_store_is_named(store):
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"run-1 \(on its way, in /.*\): writing .* no space is left there; make room"):
        store.write(2, {"model.safetensors": fail})


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_full_disk_leaves_the_checkpoint_before(tmp_path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("cannot mount a tmpfs here")
    try:
        store = Store.open(str(tmp_path), "run-1")
        store.write(1, {"model.safetensors": b"1" * 600_000})
        with pytest.raises(UserError, match="no space is left"):
            store.write(2, {"model.safetensors": b"2" * 600_000})
        assert store.newest().manifest.step == 1 and store.steps() == [1]
        assert sorted(os.listdir(tmp_path / "run-1")) == ["completed.json", "step-00000001"]
        store.delete(1)
        store.write(2, {"model.safetensors": b"2" * 600_000})
        assert store.newest().manifest.step == 2
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_unwritable_places_are_told_up_front(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(UserError, match="run-1: writing a probe failed"):
        Store.open(str(tmp_path / "file"), "run-1").check_writable()
    with pytest.raises(UserError, match="a path, file://, s3://, hf:// or memory://"):
        Store.open("ftp://host/path", "run-1")
    with pytest.raises(UserError, match="names no bucket"):
        Store.open("s3://", "run-1")
    with pytest.raises(UserError, match="cannot be a run key"):
        Store.open(str(tmp_path), "../other")


def test_no_permission_to_a_folder(tmp_path):
    """A folder of somebody else's, seen by a process that is nobody."""
    (tmp_path / "store").mkdir(mode=0o755)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and str(parent).startswith("/tmp/"):
            parent.chmod(0o755)
    code = (
        "import os, sys\n"
        "from skytune.checkpoint.store import Store\n"
        "store = Store.open(sys.argv[1], 'run-1')\n"
        "os.geteuid() or os.setuid(65534)\n"
        "try: store.check_writable()\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    if os.geteuid() != 0:
        (tmp_path / "store").chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "store")], text=True, capture_output=True, check=True, timeout=600
    )
    assert "store/run-1: no permission for writing a probe" in done.stdout, done.stdout + done.stderr


def test_completed_marker_that_is_damaged_still_means_something_was_there(tmp_path):
    store = Store.open(str(tmp_path), "run-1")
    write(store, 3)
    store.delete(3)
    (tmp_path / "run-1" / "completed.json").write_text("{")
    with pytest.raises(UserError, match="was completed and is gone"):
        store.newest()
    (tmp_path / "run-1" / "completed.json").write_text(json.dumps({"step": 3}))
    assert store.completed() == 3


def test_folders_of_others_where_checkpoints_are_made_are_left_alone(tmp_path, monkeypatch):
    """Anybody may make one there, with any name: what a killed process left goes, nothing else."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own_store = Store.open(f"memory://{uuid.uuid4().hex}", "run-1")
    with own_store.stage(1) as stage:
        prefix = stage.workspace.name.partition(f"-{os.getpid()}-")[0]
    strange = ["", "x", "x-y", "-1-y", "0-y", "99999999999999999999-y", "\u0661-y", "1.5-y"]
    for name in [*strange, "999999999-dead"]:
        (tmp_path / f"{prefix}-{name}").mkdir()
    (tmp_path / f"{prefix}-999999998-link").symlink_to(tmp_path)
    chowned = tmp_path / f"{prefix}-999999997-another"
    chowned.mkdir()
    if os.getuid() == 0:
        os.chown(chowned, 12345, 12345)
        strange.append("999999997-another")
    own_store.write(2, {"model.safetensors": b"2"})
    assert {path.name for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()} == {
        f"{prefix}-{name}" for name in strange
    }


def test_processes_that_clear_up_at_once_do_not_trip_over_each_other(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own_store = Store.open(f"memory://{uuid.uuid4().hex}", "run-1")
    with own_store.stage(1) as stage:
        prefix = stage.workspace.name.partition(f"-{os.getpid()}-")[0]
    left = [tmp_path / f"{prefix}-99999999{number}-dead" for number in range(5)]
    for folder in left:
        folder.mkdir()
    remove = shutil.rmtree

    def remove_all(path, **more):  # as if another process took the others meanwhile
        for folder in left:
            remove(folder, ignore_errors=True)
        remove(path, **more)

    monkeypatch.setattr(shutil, "rmtree", remove_all)
    own_store.write(2, {"model.safetensors": b"2"})
    assert own_store.newest().manifest.step == 2 and list(tmp_path.iterdir()) == []


def test_what_others_take_away_while_a_folder_is_listed_hides_no_checkpoint(tmp_path):
    """A lease is renewed through a file that is there for a moment: a listing that met it must not seem empty."""
    store, over = Store.open(str(tmp_path), "run-1"), threading.Event()
    write(store, 3)

    def renew():
        while not over.is_set():
            store.backend.write("run-1/lease.json", b"{}")

    threads = [threading.Thread(target=renew) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        found = [store.steps() for _ in range(3000)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert all(steps == [3] for steps in found)
