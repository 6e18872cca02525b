"""What the project changes in ZenML within its own process."""

import signal
import threading
from typing import Any

import pytest

from skytune.stacks import environment


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """ZenML's handler of signals, as a step registers it; undone afterwards."""
    from zenml.enums import ExecutionMode
    from zenml.orchestrators.signal_handler import SignalHandler

    assert threading.current_thread() is threading.main_thread()
    monkeypatch.setattr(SignalHandler, "register", SignalHandler.register)
    made = SignalHandler(step_run=object(), execution_mode=ExecutionMode.FAIL_FAST)
    yield made
    made.unregister()


def test_a_step_leaves_the_handlers_of_signals_as_they_are(handler: Any) -> None:
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in signals]
    with handler:
        taken = [signal.getsignal(number) for number in signals]
    assert all(new != old for new, old in zip(taken, before, strict=True)), "this test would see nothing"

    environment.leave_signals_alone()
    with handler:
        assert [signal.getsignal(number) for number in signals] == before
    assert [signal.getsignal(number) for number in signals] == before
