"""A program that starts warm is a program like any other: words, files, environment, signals, its end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone, like the stand-in")

FARM = Path(__file__).with_name("farm")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The words that start a program from a server that has imported `colorsys`, which nothing else does."""
    socket = tmp_path_factory.mktemp("warm") / "s"
    with subprocess.Popen([sys.executable, FARM / "warm.py", "--here", socket, "colorsys"]) as server:
        end = time.monotonic() + 600
        while not socket.exists() and time.monotonic() < end:
            time.sleep(0.02)
        yield [sys.executable, "-I", "-S", str(FARM / "ask.py"), str(socket), "/named", sys.executable]
        server.kill()


def run(words: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **options)


def test_it_is_warm_and_in_its_own_place(warm: list[str], tmp_path: Path) -> None:
    code = "import os, sys; print('colorsys' in sys.modules, sys.argv, os.getcwd(), os.environ['X'], sys.executable)"
    done = run([*warm, "-c", code, "word"], cwd=tmp_path, env={"X": "y"})
    assert (done.stdout, done.stderr) == (f"True ['-c', 'word'] {tmp_path} y /named\n", "")
    (tmp_path / "own.py").write_text("import sys\nif __name__ == '__main__': print(sys.argv, sys.path[0])")
    assert run([*warm, "own.py", "1"], cwd=tmp_path).stdout == f"['own.py', '1'] {tmp_path}\n"
    assert run([*warm, "-m", "own", "1"], cwd=tmp_path).stdout == f"['{tmp_path}/own.py', '1'] {tmp_path}\n"


def test_its_input_and_both_outputs_are_its_own(warm: list[str]) -> None:
    code = "import sys; text = sys.stdin.read(); print(len(text)); print('error', file=sys.stderr)"
    done = run([*warm, "-u", "-c", code], input="long " * 100_000)
    assert (done.returncode, done.stdout, done.stderr) == (0, "500000\n", "error\n")


def test_what_it_was_given_closes_when_it_ends(warm: list[str]) -> None:
    reading, writing = os.pipe()
    done = run([*warm, "-c", f"import os; os.write({writing}, b'said')"], pass_fds=[writing])
    os.close(writing)
    assert done.returncode == 0 and os.read(reading, 100) == b"said" and os.read(reading, 100) == b""
    os.close(reading)


@pytest.mark.parametrize(
    ("code", "ended", "message"),
    [
        ("raise SystemExit(7)", 7, ""),
        ("import sys; sys.exit('why')", 1, "why\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os.kill(os.getpid(), 15)", -15, ""),
        ("import atexit; atexit.register(print, 'last'); print('first')", 0, ""),
    ],
    ids=["code", "text", "error", "killed", "terminated", "at exit"],
)
def test_it_ends_as_programs_end(warm: list[str], code: str, ended: int, message: str) -> None:
    done = run([*warm, "-c", code])
    assert done.returncode == ended and done.stderr.endswith(message)
    assert done.stdout == ("first\nlast\n" if "atexit" in code else "")


def test_signals_reach_it_and_a_kill_takes_it_along(warm: list[str]) -> None:
    # Many short naps: a signal that comes just before a long one begins would be seen when that is over.
    nap = "    while True: time.sleep(0.02)\n"
    code = f"import time\ntry:\n    print('on', flush=True)\n{nap}except KeyboardInterrupt: print('told')"
    process = subprocess.Popen([*warm, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=600)[0] == "told\n" and process.returncode == 0
    code = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([*warm, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    assert process.communicate(timeout=600)[0] == ""  # closed only when the program has ended too
    end = time.monotonic() + 600
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()


def test_without_a_server_it_starts_as_ever(warm: list[str], tmp_path: Path) -> None:
    words = [*warm[:4], str(tmp_path / "none"), "/named", sys.executable]
    done = run([*words, "-c", "import sys; print('colorsys' in sys.modules)"])
    assert done.stdout == "False\n"
