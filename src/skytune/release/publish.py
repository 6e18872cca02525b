"""Publishing: a run's model, its card and its scores go where `upload.url` says, now or later."""

import logging
from pathlib import Path
from typing import Any

from ..checkpoint.retry import Retry
from ..config import UploadConfig
from ..job import write_json
from ..models import saved_model
from ..report.scoring import write_file
from .card import write_card
from .destination import copy_to
from .results import run_of

log = logging.getLogger(__name__)

RECORD = "outputs/published.json"
"""In a run's folder: where its model was published last."""


def publish(checkpoint: str, upload: UploadConfig, retry: Retry | None = None) -> dict[str, Any]:
    """Write the card beside a run's model, and copy all of it to `upload.url`.

    Returns:
        See `copy_to`; and `checkpoint`, `run_key`, and `card`: its text.

    Raises:
        UserError: no run's model; the card cannot be written, or the place not reached: the model stays where it is.
    """
    run, folder = run_of(checkpoint), Path(saved_model(checkpoint).folder)
    card = write_card(run, folder, upload)
    write_file(folder / "README.md", card.encode())
    found = copy_to(folder, upload, retry)
    write_json(run.folder / RECORD, found)
    return {**found, "checkpoint": str(folder), "run_key": run.key, "card": card}
