"""Signals have one owner, exit codes one place."""

import os
import re
import signal
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
