"""Two launches never write one run at once; the dead and the silent are taken over."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from skytune.checkpoint.lease import LeaseHeld, Owner, acquire
from skytune.common.processes import machine, started
from skytune.config import UserError

everywhere = pytest.mark.parametrize("url", ["file", "memory", "s3"], indirect=True)


@everywhere
def test_one_holds_others_wait_for_the_release(store):
    held = acquire(store, "launch-1")
    assert held.atomic
    with pytest.raises(LeaseHeld, match=rf"written by the launch launch-1 \(process {os.getpid()} on") as refused:
        acquire(store, "launch-2")
    assert refused.value.wait_seconds == 60
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        held.release()

    lease = acquire(store, "launch-2", wait_seconds=600, heartbeat_seconds=0.2, say=say)
    assert len(lines) == 1
    lease.release()
    assert "lease.json" not in store.backend.names("run-1")


@everywhere
def test_the_same_launch_takes_over_and_the_old_one_notices(store):
    old = acquire(store, "launch-1", heartbeat_seconds=0.05)
    new = acquire(store, "launch-1")
    end = time.monotonic() + 600
    while old.lost is None and time.monotonic() < end:
        time.sleep(0.01)
    with pytest.raises(UserError, match=r"launch-1 on .* has taken over this run"):
        old.check()
    old.release()
    new.check()
    with pytest.raises(LeaseHeld):
        acquire(store, "launch-3")
    new.release()


@everywhere
def test_one_that_was_taken_over_finishes_no_checkpoint(store):
    """Its next sign of life is far away: the store is asked before a checkpoint is begun and before it is completed."""
    old = acquire(store, "launch-1", heartbeat_seconds=1000.0)
    store.guard = old.check
    store.write(1, {"model.safetensors": b"1"})
    with store.stage(2) as stage:
        entry = stage.put("model.safetensors", b"2")
        new = acquire(store, "launch-1")
        with pytest.raises(UserError, match=r"launch-1 on .* has taken over this run; this process no longer writes"):
            stage.commit({"model.safetensors": entry})
    assert store.newest().manifest.step == 1
    new.release()


@everywhere
def test_one_that_came_and_went_is_noticed(store):
    old = acquire(store, "launch-1", heartbeat_seconds=1000.0)
    old.check(look=True)
    acquire(store, "launch-1").release()
    old.check()  # does not ask the store
    with pytest.raises(UserError, match="a launch that has ended since has taken over this run"):
        old.check(look=True)
    old.renew()
    assert "lease.json" not in store.backend.names("run-1"), "it is not taken back"


AWAY = Owner(
    launch="gone",
    host="elsewhere",
    machine="elsewhere/boot",
    pid=1,
    started="1",
    token="t",
    heartbeat=0.0,
    expiry_seconds=0.6,
)
"""Another machine's."""


def give_sign(store, ahead: float, owner: Owner = AWAY) -> None:
    store.backend.write("run-1/lease.json", json.dumps(asdict(replace(owner, heartbeat=time.time() + ahead))).encode())


@everywhere
@pytest.mark.parametrize("ahead", [0.0, 61.0, -61.0, 1e7, -1e7])
def test_a_silent_owner_is_taken_over_after_the_expiry_whatever_its_clock_says(store, ahead):
    give_sign(store, ahead)
    with pytest.raises(LeaseHeld, match=r"process 1 on elsewhere.* wait 1 s"):
        acquire(store, "launch-2")
    start = time.monotonic()
    acquire(store, "launch-2", wait_seconds=600).release()
    assert time.monotonic() - start >= 0.6


@pytest.mark.parametrize("ahead", [61.0, -61.0, 1e7])
def test_a_living_owner_is_not_taken_over_whatever_this_clock_says(store_file, ahead, monkeypatch):
    """Its signs of life come in time; the two clocks differ, and the own one jumps."""
    owner = replace(AWAY, expiry_seconds=60.0)
    give_sign(store_file, ahead, owner)
    looked, slept = [], iter(range(200))

    def sleep(seconds: float) -> None:
        looked.append(seconds)
        clock[0] += 20.0 if next(slept) < 100 else 70.0  # a hundred times in time, then never again
        if len(looked) <= 100:
            give_sign(store_file, ahead + 1000.0 * (len(looked) % 2), owner)

    clock = [0.0]
    fake = SimpleNamespace(monotonic=lambda: clock[0], time=time.time, sleep=sleep)
    monkeypatch.setattr("skytune.checkpoint.lease.time", fake)
    acquire(store_file, "launch-2", wait_seconds=float("inf")).release()
    assert len(looked) == 101


@everywhere
def test_of_many_at_once_exactly_one_wins(store):
    for stale in (False, True):
        if stale:
            give_sign(store, -10.0, replace(AWAY, machine=machine(), pid=os.getpid(), started="of an earlier one"))
        won, lost = [], []

        def attempt(number: int, won=won, lost=lost) -> None:
            try:
                won.append(acquire(store, f"launch-{number}"))
            except LeaseHeld:
                lost.append(number)

        threads = [threading.Thread(target=attempt, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 5)
        won[0].release()


def test_a_heartbeat_keeps_it(store_file):
    held = acquire(store_file, "launch-1", heartbeat_seconds=0.1, expiry_seconds=0.5)
    time.sleep(0.9)
    with pytest.raises(LeaseHeld):
        acquire(store_file, "launch-2")
    held.release()


def test_a_process_of_this_machine_that_died_is_taken_over_at_once(store_file, tmp_path):
    code = (
        "import sys\nfrom skytune.checkpoint.lease import acquire\n"
        "from skytune.checkpoint.store import Store\n"
        "acquire(Store.open(sys.argv[1], 'run-1'), 'launch-1')\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, store_file.backend.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    with pytest.raises(LeaseHeld, match=f"process {child.pid}"):
        acquire(store_file, "launch-2")
    child.kill()
    while started(child.pid) != "ended":  # a zombie is as dead as one that was waited for
        time.sleep(0.01)
    acquire(store_file, "launch-2").release()
    child.wait()


def test_only_a_process_of_this_machine_is_known_to_be_dead(store_file):
    lease = replace(
        AWAY, machine=machine(), pid=os.getpid(), started=started(os.getpid()) or "", host="h", expiry_seconds=60.0
    )
    another = replace(lease, started="another process with this number")
    for owner in (lease, replace(another, machine="elsewhere")):
        give_sign(store_file, -1000.0, owner)
        with pytest.raises(LeaseHeld):
            acquire(store_file, "b")
    acquire(store_file, lease.launch).release()
    give_sign(store_file, 1000.0, another)
    acquire(store_file, "b").release()


@pytest.mark.parametrize(
    "data",
    [
        b"{half",
        b"[" * 100_000,
        json.dumps({**asdict(AWAY), "expiry_seconds": "long"}).encode(),
        json.dumps({**asdict(AWAY), "expiry_seconds": float("nan")}).encode(),
        json.dumps({**asdict(AWAY), "expiry_seconds": float("inf")}).encode(),
    ],
    ids=["half", "deep", "text", "nan", "for-ever"],
)
def test_a_damaged_lease_is_nobodys(store_file, data):
    store_file.backend.write("run-1/lease.json", data)
    held = acquire(store_file, "launch-1")
    held.check()
    held.release()


def test_a_machine_that_slept_looks_before_it_writes(store_file, monkeypatch):
    held = acquire(store_file, "launch-1", heartbeat_seconds=60, expiry_seconds=0.2)
    other = acquire(store_file, "launch-2", wait_seconds=600)
    with pytest.raises(UserError, match=r"launch-2 on .* has taken over"):
        held.check()
    held.release()
    other.check()
    other.release()


def test_leaving_while_the_store_is_away_is_quiet(store_file, monkeypatch):
    held = acquire(store_file, "launch-1")

    def away(path):
        raise PermissionError(13, "away")

    with monkeypatch.context() as patched:
        patched.setattr(store_file.backend, "read_version", away)
        held.release()
    assert "lease.json" in store_file.backend.names("run-1")


@pytest.fixture
def store_file(tmp_path):
    from skytune.checkpoint.store import Store

    return Store.open(str(tmp_path), "run-1")
