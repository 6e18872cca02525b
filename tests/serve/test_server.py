"""The server as people start it, and 64 clients at once: no answer is lost or swapped, whatever else is sent."""

import asyncio
import importlib.util
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
JSON = {"Content-Type": "application/json"}
CLIENTS = 64


class Served:
    """A server in a process of its own."""

    def __init__(self, *words: str) -> None:
        command = [
            sys.executable,
            str(ROOT / "src" / "serve.py"),
            *words,
            "--port",
            "0",
            "--device",
            "cpu",
            "--threads",
            "1",
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        found = re.search(r"http://\S+", first)
        assert found, self.process.communicate()
        self.url = found[0]

    def ask_to_end(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def memory(self) -> int:
        """Return the bytes of memory that it has."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    started: list[Served] = []

    def start(*words: str) -> Served:
        started.append(Served(*words))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


NONSENSE: list[tuple[bytes, dict[str, str]]] = [
    (b'{"inputs": [', JSON),
    (b"x" * 10_000_000, JSON),
    (b"[" * 100_000, JSON),
    (b'{"inputs": ' + b"[" * 1_000_000, JSON),
    (b'{"inputs": [3]}', JSON),
    (b'{"inputs": NaN}', JSON),
    (b'{"inputs": [' + b"1," * 500_000 + b"1]}", JSON),
    (b'{"inputs": "a"}', {"Content-Type": "text/plain"}),
    (b"{}", {**JSON, "Content-Encoding": "gzip"}),
]


async def load(
    served: Served, known: dict[str, list[float]], stop: Callable[[int], bool], nonsense: bool
) -> dict[str, int]:
    """Have clients ask until `stop` (told how many requests were answered), check each answer; count what came."""
    counts = {"answered": 0, "refused": 0, "ended": 0}
    texts = list(known)

    async def client(number: int) -> None:
        draw = random.Random(number)
        async with httpx.AsyncClient(base_url=served.url, timeout=300) as made:
            while not stop(counts["answered"]):
                chosen = draw.choices(texts, k=draw.choice([1, 1, 1, 2, 7]))
                try:
                    if nonsense and number % 8 == 0 and draw.random() < 0.3:
                        content, headers = draw.choice(NONSENSE)
                        answer = await made.post("/predict", content=content, headers=headers)
                        assert 400 <= answer.status_code < 500, answer.text
                        counts["refused"] += 1
                        continue
                    answer = await made.post("/predict", json={"inputs": chosen, "logits": True})
                except httpx.ConnectError:  # nobody listens any more: it was not taken
                    counts["ended"] += 1
                    return
                assert answer.status_code == 200, answer.text
                found = answer.json()["predictions"]
                assert len(found) == len(chosen)
                for text, told in zip(chosen, found, strict=True):
                    for a, b in zip(told["logits"], known[text], strict=True):
                        assert abs(a - b) <= 1e-6 * max(1, *map(abs, known[text])), text
                counts["answered"] += 1

    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    return counts


@pytest.fixture
def known(
    saved: Callable[[str], Path], evaluated: Callable[..., list[list[float]]], texts: Callable[..., list[str]]
) -> dict[str, list[float]]:
    """Texts with their logits, computed as an evaluation does."""
    rows = list(dict.fromkeys(texts(150, 7)))
    return dict(zip(rows, evaluated("text-classification", saved("text-classification"), rows), strict=True))


def ends_well(served: Served) -> None:
    assert served.process.wait(60) == 0
    assert served.process.stderr is not None
    errors = served.process.stderr.read()
    assert "Traceback" not in errors and "ERROR" not in errors, errors


def test_many_clients_get_their_own_answers_until_the_end(
    serve: Callable[..., Served], saved: Callable[[str], Path], known: dict[str, list[float]]
) -> None:
    served = serve(str(saved("text-classification")), "--batch-size", "16")
    asked = False

    def stop(answered: int) -> bool:
        nonlocal asked
        if answered >= 400 and not asked:  # in the middle of all
            asked = True
            served.ask_to_end()
        return False

    counts = asyncio.run(load(served, known, stop, nonsense=True))
    assert counts["answered"] >= 400 and counts["ended"] == CLIENTS and counts["refused"] > 0
    ends_well(served)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_memory_stays_flat_for_half_a_minute(
    serve: Callable[..., Served], saved: Callable[[str], Path], known: dict[str, list[float]]
) -> None:
    served = serve(str(saved("text-classification")))

    def round_of(seconds: float) -> tuple[dict[str, int], int]:
        end = time.monotonic() + seconds
        counts = asyncio.run(load(served, known, lambda _: time.monotonic() > end, nonsense=True))
        return counts, served.memory()

    _, before = round_of(10)
    counts, after = round_of(30)
    assert counts["answered"] > CLIENTS and counts["refused"] > 0 and counts["ended"] == 0
    assert after < before + 30e6, (before, after)
    served.ask_to_end()
    ends_well(served)


def answer_of(connection: socket.socket) -> bytes:
    """Return a whole answer, which may come in parts."""
    found = b""
    while not found.endswith(b"}"):
        part = connection.recv(5000)
        assert part, found
        found += part
    return found


def test_a_request_that_is_on_its_way_at_the_end_is_answered(
    serve: Callable[..., Served], saved: Callable[[str], Path]
) -> None:
    served = serve(str(saved("text-classification")))
    host, port = served.url.removeprefix("http://").split(":")
    body = json.dumps({"inputs": "good film"}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as half, socket.create_connection((host, int(port))) as idle:
        half.sendall(head.encode() + body[:5])
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" in answer_of(idle)
        served.ask_to_end()
        answer = b""
        while b"connection: close" not in answer:  # on a connection that was there, until the end is said
            idle.sendall(head.encode() + body)
            answer = answer_of(idle)
            assert b"200 OK" in answer and b"prediction" in answer
        half.sendall(body[5:])
        answer = answer_of(half)
        assert b"200 OK" in answer and b"prediction" in answer
        assert half.recv(10) == b""
    ends_well(served)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return the command's `main`, in this process: for what fails before anything is served."""
    before = list(sys.path)
    spec = importlib.util.spec_from_file_location("serve_command", ROOT / "src" / "serve.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "path", before)
    main: Callable[[list[str]], int] = module.main
    return lambda *words: main(list(words))


def test_what_cannot_be_served_is_said_in_one_line(
    command: Callable[..., int],
    saved: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = str(saved("text-classification"))
    capsys.readouterr()  # what making it has written

    def line_of(*words: str) -> str:
        assert command(*words) == 1
        errors = capsys.readouterr().err.splitlines()
        assert len(errors) == 1 and errors[0].startswith("error: "), errors
        return errors[0]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "--port 0" in line_of(model, "--port", str(taken.getsockname()[1]))
    assert "checkpoint" in line_of(str(tmp_path / "nothing"), "--port", "0")
    assert "cannot listen" in line_of(model, "--host", "192.0.2.1")
    with pytest.raises(SystemExit, match="2"):
        command(model, "--port", "99999")
    assert "0 to 65535" in capsys.readouterr().err
    assert "--max-rows" in line_of(model, "--queue", "10")
    assert "no such task" in line_of(model, "--port", "0", "--task", "poetry")
    assert "precision" in line_of(model, "--port", "0", "--precision", "fp23")
    assert "takes 64 tokens" in line_of(model, "--port", "0", "--max-length", "100")
    monkeypatch.setenv("SKYTUNE_SERVE_TOKEN", " ")
    assert "SKYTUNE_SERVE_TOKEN" in line_of(model, "--port", "0")
