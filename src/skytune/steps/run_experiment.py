"""Step `run_experiment`: the cells of a design, run here; the table of results."""

import logging
from typing import Annotated, Any

from zenml import log_metadata, step

from .context import whole_config

log = logging.getLogger(__name__)


@step(enable_cache=False)  # the store of results decides what is finished, not the cache
def run_experiment(design: dict[str, Any]) -> Annotated[Any, "results"]:
    """Run the cells that have no result yet, or take results as they are; `design` is there to be seen."""
    from ..experiment.results import in_numbers, results

    table = results(whole_config())
    log_metadata(in_numbers(table))
    return table
