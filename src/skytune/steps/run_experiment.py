"""Step `run_experiment`: the cells of a design, run here; the table of results."""

import logging
from functools import partial
from typing import Annotated, Any

from zenml import log_metadata, step

from .context import whole_config

log = logging.getLogger(__name__)


@step(enable_cache=False)
def run_experiment(design: dict[str, Any]) -> Annotated[Any, "results"]:
    """Run the cells that have no result yet, or take results as they are; `design` is there to be seen."""
    from zenml.client import Client

    from ..experiment.results import in_numbers, results
    from ..experiment.running import launcher_of
    from ..stacks.flavor import store_of

    table = results(whole_config(), partial(launcher_of, store=store_of(Client())))
    log_metadata(in_numbers(table))
    return table
