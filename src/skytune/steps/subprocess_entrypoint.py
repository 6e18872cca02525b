"""The child in which the step operator runs a step: ZenML set up as in the parent, and an end when the parent dies."""

import gc
import os
import sys
import threading
from pathlib import Path
from uuid import UUID

import skytune

from ..common.exit_codes import EXIT_INTERRUPTED
from ..common.output import make_lasting
from ..config.scrubbing import log_plainly
from ..stacks import environment
from ..stacks.step_operator import PIPE

NEVER_MIND = (KeyboardInterrupt, SystemExit)


def main() -> int:
    """Run the step that the command line names; return the exit code. What went wrong stands in ZenML's store."""
    _watch_parent()
    make_lasting()
    gc.disable()  # as in `src/run.py`
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))  # the user's own modules, as in `src/run.py`
    log_plainly()
    environment.prepare(Path(skytune.__file__).resolve().parents[1])
    environment.connect()
    from ..materializers import register

    register()
    from zenml.entrypoints import entrypoint

    gc.freeze()
    gc.enable()
    try:
        entrypoint.main()
    except NEVER_MIND:
        return EXIT_INTERRUPTED
    except BaseException as error:
        _report_error(error, sys.argv)
        return 1
    return 0


def _report_error(error: BaseException, words: list[str]) -> None:
    """See that ZenML's store says why the step failed, which the parent raises: ZenML itself says it only of what the
    step's own function raised, not of what came before and after it."""
    from zenml.client import Client
    from zenml.enums import ExecutionStatus
    from zenml.models import StepRunUpdate
    from zenml.step_operators.step_operator_entrypoint_configuration import STEP_RUN_ID_OPTION
    from zenml.utils.exception_utils import collect_exception_information

    id_ = UUID(words[words.index(f"--{STEP_RUN_ID_OPTION}") + 1])
    if Client().get_run_step(id_).exception_info is None:
        update = StepRunUpdate(status=ExecutionStatus.FAILED, exception_info=collect_exception_information(error))
        Client().zen_store.update_run_step(id_, update)


def _watch_parent() -> None:
    """End this process, and nothing else, when the pipe closes: a job on other machines runs to its end."""
    number = os.environ.pop(PIPE, "")
    if not number:
        return

    def watch() -> None:
        os.read(int(number), 1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


if __name__ == "__main__":
    sys.exit(main())
