"""What a step needs to know of its run that must not be part of its cache key: machine, launcher, logging."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from zenml import get_step_context

from ..config import RunConfig, UserError, from_dict
from ..config.folders import home
from .types import Dataset, Datasets

EXTRA = "config"
"""Key of the whole configuration in a step's `extra` (which ZenML's cache does not look at)."""


def whole_config() -> RunConfig:
    """Return the configuration of the run that this step belongs to."""
    return from_dict(RunConfig, get_step_context().step_run.config.extra[EXTRA])


def input_metadata(name: str, key: str) -> dict[str, Any]:
    """Return metadata of an input artifact; empty where there is none."""
    versions = get_step_context().inputs.get(name) or []
    versions = versions if isinstance(versions, list) else [versions]
    found = versions[0].run_metadata.get(key) if versions else None
    return dict(found) if isinstance(found, dict) else {}


def named_sets(validation: Datasets) -> dict[str, Dataset]:
    """Return the evaluation sets by name: `load_data` hands on several as one DatasetDict."""
    return dict(validation) if isinstance(validation, dict) else {"validation": validation}


@contextmanager
def run_folder_in_use() -> Iterator[None]:
    """Name the runs' folder where the system's own error says only that a disk is full or may not be written.

    Raises:
        UserError: instead of any OSError in the block.
    """
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write the run under {home() / 'runs'}: {error.strerror or error} (SKYTUNE_HOME chooses another "
            "folder)"
        ) from error
