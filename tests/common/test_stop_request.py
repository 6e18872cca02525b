"""Signals have one owner, exit codes one place."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from skytune.common.stop_request import SIGNALS, StopRequest

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_one_module_handles_signals_and_one_knows_exit_codes() -> None:
    texts = {str(file.relative_to(SOURCE)): file.read_text() for file in SOURCE.rglob("*.py")}
    handles = [name for name, text in texts.items() if re.search(r"signal\.signal\((?!signal\.SIGCHLD)", text)]
    standalone = "skytune/launch/sagemaker/entry.py"  # runs where nothing of ours is installed yet
    assert sorted(handles) == ["skytune/common/stop_request.py", standalone]
    codes = [name for name, text in texts.items() if re.search(r"^EXIT_\w+.*=|return (75|76|130)\b", text, re.M)]
    assert codes == ["skytune/common/exit_codes.py"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_what_python_calls_back_is_raised_again(number: int) -> None:
    """In a weak reference's callback, as at an import's end; and once more in the `__del__` that comes after it."""
    code = """
import signal, sys, time, weakref
from skytune.common.stop_request import SIGNALS, Interruption
number = signal.Signals(int(sys.argv[1]))
request = Interruption(SIGNALS)
request.listen()
class Slow:
    def __del__(self):
        time.sleep(0.2)
        raise ValueError("is shown")
class Plain:
    pass
one = Plain()
mark = weakref.ref(one, lambda _: signal.raise_signal(number))
try:
    del one
    slow = Slow()
    del slow
    time.sleep(600)
except KeyboardInterrupt:
    bad = Slow()
    del bad
    print("ended", request.asked_by)
"""
    done = subprocess.run([sys.executable, "-c", code, str(int(number))], capture_output=True, text=True, check=False)
    assert done.stdout == f"ended {int(number)}\n" and done.returncode == 0, done.stderr
    assert "ValueError: is shown" in done.stderr and "KeyboardInterrupt" not in done.stderr


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_remembered_and_every_one_is_heard(number: int) -> None:
    class Listener(StopRequest):
        def on_signal(self, number: int, first: bool) -> None:
            seen.append((number, first))

    seen: list[tuple[int, bool]] = []
    before = [signal.getsignal(each) for each in SIGNALS]
    with Listener() as request:
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGTERM)
    assert request.asked_by == number and seen == [(number, True), (signal.SIGTERM, False)]
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_another_thread_hears_none() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def enter() -> None:
        with StopRequest():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [before]
