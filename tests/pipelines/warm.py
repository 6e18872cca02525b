"""Commands that start warm: a server that has imported the libraries (not this package: tests change it) forks a
process for every command, which then is `src/run.py` like any other. Importing takes most of a small run's time.

    python warm.py CHECKOUT     reads `{"words": [...], "cwd": ..., "env": {...}, "out": FILE, "err": FILE}` lines, says
                                the id of every process, and then how it ended
"""

import gc
import json
import os
import random
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

LONGEST = 900
"""Seconds that a command may take: nothing is left behind by tests that were ended."""


def serve(source: Path) -> dict[str, Any]:
    """Return, in a process of its own, every order; never returns in the server."""
    sys.path.insert(0, str(source))
    from skytune.stacks import environment

    environment.prepare(source)  # what ZenML reads while it is imported
    sys.path.remove(str(source))
    for name in [name for name in sys.modules if name.partition(".")[0] == "skytune"]:
        del sys.modules[name]

    import alembic.config  # noqa: F401
    import datasets  # noqa: F401
    import evaluate  # noqa: F401
    import hydra_zen  # noqa: F401
    import torch  # noqa: F401
    import zenml.artifacts.utils
    import zenml.client
    import zenml.integrations.registry
    import zenml.orchestrators.step_runner
    import zenml.zen_stores.migrations.alembic
    import zenml.zen_stores.sql_zen_store  # noqa: F401

    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return dict(json.loads(line))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)  # an interpreter that has imported all this takes seconds to end


def become(order: dict[str, Any], script: Path) -> None:
    """Be the command."""
    os.setsid()
    signal.alarm(LONGEST)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    random.seed()
    sys.argv = [str(script), *order["words"]]
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    become(serve(place / "src"), place / "src" / "run.py")
