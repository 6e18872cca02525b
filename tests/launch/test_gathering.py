"""Node 0's book of the machines: who counts as present, and that a slow one holds nobody up."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from skytune.config import LaunchConfig, UserError
from skytune.job import JobDir
from skytune.launch.channel import Closed
from skytune.launch.gathering import Gathering
from skytune.launch.member import Member
from skytune.launch.nodes import Nodes


class Line:
    """NOT a channel: remembers what was said; while `busy`, whoever speaks waits, as beside a folder that is sent."""

    def __init__(self, busy: bool = False) -> None:
        self.said: list[str] = []
        self.free, self.closed = threading.Event(), False
        if not busy:
            self.free.set()

    def send(self, kind: str, **_: Any) -> None:
        self.free.wait(10)
        self.said.append(kind)

    def close(self) -> None:
        self.closed = True
        self.free.set()


@pytest.fixture
def gathering(tmp_path: Path) -> Gathering:
    launch = LaunchConfig(nodes=3, nodes_timeout_seconds=0.3, grace_seconds=0.1)
    return Gathering(JobDir(tmp_path), Nodes(3, 0, "127.0.0.1", 0, ""), launch, 1, lambda hello: "")


def member(gathering: Gathering, rank: int, ready: bool, busy: bool = False) -> Member:
    one = Member(rank, f"machine-{rank}", Line(busy))  # type: ignore[arg-type]
    one.ready = ready
    gathering.members[rank] = one
    return one


def test_a_machine_that_is_gone_before_all_are_there_makes_room(gathering: Gathering) -> None:
    gone = member(gathering, 1, ready=True)
    gathering._lose(gone, Closed("the connection ended"))
    assert gathering.members == {} and gone.channel.closed
    member(gathering, 2, ready=True)
    said = r"node 1 did not come within 0\.3 s .*here: node 0 \(\S+\), node 2 \(machine-2\)"
    with pytest.raises(UserError, match=said):
        gathering.wait(lambda: None)


def test_a_machine_that_is_gone_afterwards_is_named(gathering: Gathering) -> None:
    one, _ = member(gathering, 1, ready=True), member(gathering, 2, ready=True)
    gathering.wait(lambda: None)
    gathering._lose(one, Closed("the connection ended"))
    assert gathering.failed() and gathering.gone() == "node 1 (machine-1) is gone (the connection ended)"


def test_a_machine_that_fetches_its_inputs_keeps_the_pulse_from_nobody(
    gathering: Gathering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skytune.launch.gathering.PULSE_SECONDS", 0.01)
    slow, ready = member(gathering, 1, ready=False, busy=True), member(gathering, 2, ready=True)
    thread = threading.Thread(target=gathering._pulse)
    thread.start()
    until = time.monotonic() + 10
    while ready.channel.said.count("pulse") < 3 and time.monotonic() < until:
        time.sleep(0.01)
    gathering._ended = True
    slow.channel.free.set()
    thread.join(10)
    assert ready.channel.said.count("pulse") >= 3 and slow.channel.said == []


def test_the_end_does_not_wait_for_a_transfer(gathering: Gathering) -> None:
    slow, ready = member(gathering, 1, ready=False, busy=True), member(gathering, 2, ready=True)
    began = time.monotonic()
    gathering.end("failed", wait=False)
    assert time.monotonic() - began < 5 and slow.channel.closed and slow.channel.said == []
    assert ready.channel.said == ["end"]
