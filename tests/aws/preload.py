"""What commands inside the farm import, imported once for all of them (by farm/warm.py): not this project itself, of
which every test has its own copy."""

import os
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"


def _import() -> None:
    sys.path.insert(0, str(SOURCE))
    from skytune.stacks import environment

    environment.prepare(SOURCE)  # what ZenML reads while it is imported
    sys.path.remove(str(SOURCE))
    for name in [name for name in sys.modules if name.partition(".")[0] == "skytune"]:
        del sys.modules[name]

    import alembic.config  # noqa: F401
    import datasets  # noqa: F401
    import evaluate  # noqa: F401
    import hydra_zen  # noqa: F401
    import s3fs  # noqa: F401
    import sky.optimizer  # noqa: F401
    import torch  # noqa: F401
    import transformers  # noqa: F401
    import zenml.artifacts.utils
    import zenml.client
    import zenml.integrations.registry
    import zenml.orchestrators.step_runner
    import zenml.zen_stores.migrations.alembic
    import zenml.zen_stores.sql_zen_store  # noqa: F401


def renew() -> None:
    """Have a forked program's ZenML look where its own environment says: that name alone is read while importing."""
    import zenml.utils.source_utils

    zenml.utils.source_utils._CUSTOM_SOURCE_ROOT = os.environ.get("ZENML_CUSTOM_SOURCE_ROOT")


_import()
