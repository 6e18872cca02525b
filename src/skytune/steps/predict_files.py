"""Step `predict_files`: a trained model's answers beside the rows of files without labels."""

import logging
from typing import Annotated, Any

from zenml import log_metadata, step

from .context import run_config

log = logging.getLogger(__name__)


@step(enable_cache=False)
def predict_files(checkpoint: str, files: dict[str, Any]) -> Annotated[dict[str, Any], "prediction_summary"]:
    """Predict in worker processes; `files` is there to be seen."""
    from ..launch.predict_files import predict_files as predict

    log.info("predict_files: starting the worker processes")
    found = predict(run_config(), checkpoint)
    log_metadata({key: value for key, value in found.items() if isinstance(value, (int, float, str))})
    return found
