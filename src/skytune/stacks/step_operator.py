"""The step operator: a step's Python in a child of this process, on this machine; its workers go to SkyPilot's.

The child is told by a pipe that this process has died: it then leaves the job alone, which runs to its end on machines
that take themselves down. Signals come to this process alone (the child has a session of its own) and are handed on.
"""

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from zenml.enums import ExecutionStatus
from zenml.step_operators.base_step_operator import BaseStepOperator
from zenml.step_operators.step_operator_entrypoint_configuration import StepOperatorEntrypointConfiguration

from ..common.stop_request import StopRequest
from ..config import Preempted
from ..launch.processes import START, end_group
from ..launch.remote.machine import ROLE, STORE, VARIABLE
from .settings import SkyPilotStepOperatorConfig, SkyPilotStepOperatorSettings

if TYPE_CHECKING:
    from zenml.config.step_run_info import StepRunInfo
    from zenml.models import StepRunResponse

PIPE = "SKYTUNE_PARENT_PIPE"
"""Environment variable with the number of the pipe that closes when the parent dies."""

CHILD = "skytune.steps.subprocess_entrypoint"
"""By name: that module knows the materializers, which this room does not."""

CANCEL_SECONDS = 900.0
"""What a child that is told to end may take: it takes machines down."""


class ChildEntrypoint(StepOperatorEntrypointConfiguration):
    """ZenML's entry into a step, in our child: the current folder and the code are right already."""

    def prepare_code_environment(self) -> None:
        """Leave all as it is: ZenML's own way is for containers (it changes into `/app`)."""


class SkyPilotStepOperator(BaseStepOperator):
    """Runs a step in a child process that launches workers with SkyPilot."""

    @property
    def config(self) -> SkyPilotStepOperatorConfig:
        """What the stack was registered with."""
        found: SkyPilotStepOperatorConfig = self._config
        return found

    @property
    def settings_class(self) -> type[SkyPilotStepOperatorSettings]:
        """What a step's `settings` may say."""
        return SkyPilotStepOperatorSettings

    @property
    def entrypoint_config_class(self) -> type[ChildEntrypoint]:
        """How the child enters the step."""
        return ChildEntrypoint

    def submit(self, info: "StepRunInfo", entrypoint_command: list[str], environment: dict[str, str]) -> None:
        """Start the child."""
        machine = self.get_settings(info).machine()
        own = {STORE: self.config.store, ROLE: self.config.sagemaker_role}
        machine |= {key: value for key, value in own.items() if value}
        words = entrypoint_command[entrypoint_command.index("-m") + 2 :]  # what follows ZenML's own module
        heard, held = os.pipe()
        env = {**os.environ, **environment, VARIABLE: json.dumps(machine), PIPE: str(heard), "PYTHONSAFEPATH": "1"}
        _children[str(info.step_run_id)] = _Child(
            subprocess.Popen(
                [sys.executable, str(START), CHILD, *words],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[heard],
                start_new_session=True,
            ),
            held,
        )
        os.close(heard)

    def get_status(self, step_run: "StepRunResponse") -> ExecutionStatus:
        """Return what the child does."""
        code = _children[str(step_run.id)].process.poll()
        if code is None:
            return ExecutionStatus.RUNNING
        return ExecutionStatus.COMPLETED if code == 0 else ExecutionStatus.FAILED

    def wait(self, step_run: "StepRunResponse") -> ExecutionStatus:
        """Wait for the child, handing signals on to it.

        Raises:
            KeyboardInterrupt: Ctrl-C, once the child has ended.
            Preempted: another signal, before the child could say anything.
        """
        child = _children[str(step_run.id)]
        with _HandedOn(child.process) as signals:
            code = child.process.wait()
        if signals.asked_by == signal.SIGINT:
            raise KeyboardInterrupt
        if signals.asked_by is not None and code < 0:
            raise Preempted("stopped while nothing was trained; the same command goes on")
        return ExecutionStatus.COMPLETED if code == 0 else ExecutionStatus.FAILED

    def cancel(self, step_run: "StepRunResponse") -> None:
        """Tell the child to save, take its machines down and end."""
        child = _children.get(str(step_run.id))
        if child is not None and child.process.poll() is None:
            child.process.send_signal(signal.SIGTERM)

    def cleanup_step_submission(self, step_run: "StepRunResponse") -> None:
        """Leave no child behind."""
        child = _children.pop(str(step_run.id), None)
        if child is None:
            return
        try:
            if child.process.poll() is None:
                end_group(child.process, CANCEL_SECONDS)
        finally:
            os.close(child.pipe)


class _Child:
    def __init__(self, process: "subprocess.Popen[bytes]", pipe: int) -> None:
        self.process, self.pipe = process, pipe


_children: dict[str, _Child] = {}
"""By step run; ZenML makes a new operator object for every call."""


class _HandedOn(StopRequest):
    """While it is entered, signals to this process go to a child, which knows what to do about them."""

    def __init__(self, child: "subprocess.Popen[bytes]") -> None:
        super().__init__()
        self.child = child

    def on_signal(self, number: int, first: bool) -> None:
        if self.child.poll() is None:
            self.child.send_signal(number)
