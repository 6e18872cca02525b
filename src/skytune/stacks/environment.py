"""ZenML set up for this project: found from any folder, quiet, without analytics, its store made by one process."""

import fcntl
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..aws import skypilot
from ..config import UserError
from ..config.folders import keep_compiled
from ..config.installing import add_extra

if TYPE_CHECKING:
    from zenml.client import Client


def prepare(source_root: Path) -> None:
    """Set the variables that ZenML and torch's compiler read when they are imported; whatever the user has set stays.

    Args:
        source_root: the folder `src`; its parent holds `.zen`. Steps are recorded relative to it, so that a fresh
            process that has the package installed can import them.
    """
    settings = {
        "ZENML_CUSTOM_SOURCE_ROOT": str(source_root),
        "ZENML_REPOSITORY_PATH": str(source_root.parent),
        "ZENML_ANALYTICS_OPT_IN": "false",
        "ZENML_AUTO_OPEN_DASHBOARD": "false",
        "ZENML_ENABLE_RICH_TRACEBACK": "false",
        "ZENML_LOGGING_VERBOSITY": "WARNING",
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if not sys.stdout.isatty():
        settings["ZENML_LOGGING_COLORS_DISABLED"] = "true"
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    keep_compiled()
    if sys.platform == "darwin":
        # Apple's Objective-C runtime ends a forked child of a process that used it; ZenML and loaders fork.
        os.environ.setdefault("OBJC_DISABLE_INITIALIZE_FORK_SAFETY", "YES")


def connect() -> "Client":
    """Return ZenML's client with its store ready.

    The first use of a store creates its tables; two processes that do so at once break it, so it is done under a lock
    (the operating system's: gone with the process that held it).

    Raises:
        UserError: the store cannot be used or its server does not answer.
    """
    try:
        from zenml.config.global_config import GlobalConfiguration
        from zenml.utils import io_utils

        logging.getLogger("zenml").setLevel(logging.CRITICAL)  # a failing step is told by us, in one line
        folder = Path(os.environ.get("ZENML_CONFIG_PATH") or io_utils.get_global_config_directory())
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".skytune.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fresh = not (folder / "config.yaml").is_file()
            from zenml.client import Client

            client = Client()
            _ = client.zen_store
            stack = client.active_stack_model
            if fresh and os.environ["ZENML_ANALYTICS_OPT_IN"] == "false":
                GlobalConfiguration().analytics_opt_in = False  # for the user's own `zenml` commands too
                _skip_questions(client)
    except OSError as error:
        raise UserError(f"cannot use ZenML's folder: {error} (ZENML_CONFIG_PATH chooses another)") from error
    except ImportError as error:
        raise UserError(f"ZenML is not installed ({error}): `make install`, or {add_extra('orchestrate')}") from error
    except Exception as error:
        if "connect" in str(error).lower() or "refused" in str(error).lower():
            raise UserError(
                "ZenML's server does not answer: `zenml login --local` starts it again (--port=8238 if 8237 is taken), "
                "`zenml logout --local` goes back to the local store"
            ) from error
        raise UserError(f"ZenML's store cannot be opened: {str(error).splitlines()[0]}") from error
    # ZenML would import every library it has an integration for (seconds); our materializers are registered by name.
    from zenml.integrations.registry import integration_registry

    _keep_worker_lines()
    integration_registry.activate_integrations = lambda: None
    leave_signals_alone()
    skypilot.use_role(stack.name, stack.labels)
    return client


def leave_signals_alone() -> None:
    """Have ZenML leave SIGTERM and Ctrl-C to whoever started it.

    While a step runs, its handler asks the store about the run, wherever the signal came: in the middle of a commit of
    the same store too, which then waits for itself (seen). The command's own handler waits for the end of it.
    """
    from zenml.orchestrators.signal_handler import SignalHandler

    SignalHandler.register = lambda self: self


def _skip_questions(client: "Client") -> None:
    """Have the dashboard show runs at once: on a new store it would ask for a name and an e-mail address first."""
    from zenml.models import UserUpdate

    answers = UserUpdate(email_opted_in=False, user_metadata={"finished_onboarding_survey": True})
    client.zen_store.update_user(client.active_user.id, answers)


def _keep_worker_lines() -> None:
    """Have ZenML keep the workers' log lines in the step's log, which the dashboard shows."""
    from zenml.logger import ZenMLLoggingHandler

    records = logging.getLogger("skytune.workers")  # `launch.follow.records`; importing launchers takes a second
    if not records.handlers:
        records.addHandler(ZenMLLoggingHandler())
