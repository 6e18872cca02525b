"""How a worker learns that it should end: a signal, a file, EC2's notice (a local server stands in for it)."""

import http.server
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_dirs import assert_permutations, result

from skytune.distributed.preemption import SIGNALS, PreemptionListener


class Metadata(http.server.BaseHTTPRequestHandler):
    """IMDSv2 as AWS documents it: a token by PUT, 404 until there is a notice, 401 without the token."""

    action = b""
    asked = 0

    def do_PUT(self) -> None:
        assert self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self._answer(200, b"the-token")

    def do_GET(self) -> None:
        type(self).asked += 1
        if self.headers["X-aws-ec2-metadata-token"] != "the-token":
            self._answer(401, b"")
        elif self.path == "/latest/meta-data/spot/instance-action" and self.action:
            self._answer(200, self.action)
        else:
            self._answer(404, b"")

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_only_raises_the_flag(tmp_path: Path, number: signal.Signals) -> None:
    notice = PreemptionListener(tmp_path / "preempt", rank=1)
    notice.listen()
    assert not notice.given()
    os.kill(os.getpid(), number)
    assert notice.given() and notice.reason == number.name


def test_the_flag_file_is_rank_0s_to_look_for(tmp_path: Path) -> None:
    first, second = PreemptionListener(tmp_path / "preempt", rank=0), PreemptionListener(tmp_path / "preempt", rank=1)
    assert not first.given()
    (tmp_path / "preempt").touch()
    assert first.given() and not second.given()


TERMINATE = b'{"action": "terminate", "time": "2026-11-28T03:00:00Z"}'


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Metadata, "action", b"")
    monkeypatch.setattr(Metadata, "asked", 0)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_ec2s_notice(tmp_path: Path, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = PreemptionListener(tmp_path / "preempt", rank=0)
    threading.Thread(target=notice._poll, args=(endpoint, 0.05), daemon=True).start()
    until = time.monotonic() + 600
    while Metadata.asked < 2 and time.monotonic() < until:
        time.sleep(0.02)
    assert Metadata.asked >= 2 and not notice.given()
    monkeypatch.setattr(Metadata, "action", TERMINATE)
    while not notice.given() and time.monotonic() < until:
        time.sleep(0.02)
    assert notice.reason == "spot interruption: terminate at 2026-11-28T03:00:00Z"


def test_ec2s_notice_ends_all_processes_after_the_same_step(
    lives: Any, place: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 alone asks, and is told at once; both save together and end in order. The same job goes on from there."""
    monkeypatch.setattr(Metadata, "action", TERMINATE)
    slow = {"slow": {"_target_": "faults.Slow", "seconds": 0.1}}
    job: Path = place.lay("spot", epochs=3, callbacks=slow)
    life = lives.live(job, 2, SKYTUNE_IMDS=endpoint)
    assert life.code == 0 and Metadata.asked == 1, life.output
    stopped = result(job)["steps"]
    assert result(job)["status"] == "preempted" and 1 <= stopped < 36
    assert (
        f"told to end (spot interruption: terminate at 2026-11-28T03:00:00Z): stopped after step {stopped}"
        in life.output
    )
    last = [json.loads(path.read_text().splitlines()[-1])["step"] for path in sorted(job.glob("seen-*"))]
    assert last == [stopped, stopped]
    assert f"checkpoint: step {stopped} saved" in life.output
    monkeypatch.setattr(Metadata, "action", b"")
    life = lives.live(job, 2, SKYTUNE_IMDS=endpoint)
    assert life.code == 0 and f"resuming from step {stopped} " in life.output, life.output
    assert_permutations(place.seen(job), rows=90, steps_per_epoch=12)
