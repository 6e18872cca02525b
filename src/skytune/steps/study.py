"""Steps `run_experiment` and `draw_results`: the cells of a design, run here; the table of results; its page."""

import logging
from functools import partial
from typing import Annotated, Any

from zenml import log_metadata, step
from zenml.types import HTMLString

from .context import run_config

log = logging.getLogger(__name__)


@step(enable_cache=False)
def run_experiment(design: dict[str, Any]) -> Annotated[Any, "results"]:
    """Run the cells that have no result yet, or take results as they are; `design` is there to be seen."""
    from zenml.client import Client

    from ..stacks.flavor import role_of, store_of
    from ..study.results import in_numbers, results
    from ..study.runner import launcher_of

    client = Client()
    table = results(run_config(), partial(launcher_of, store=store_of(client), role=role_of(client)))
    log_metadata(in_numbers(table))
    return table


@step(enable_cache=False)
def draw_results(results: Any) -> Annotated[HTMLString, "page"]:
    """Draw the table, and write table and page into the experiment's folder."""
    from ..study import draw

    log.info("draw_results: drawing %d cells", len(results))
    return HTMLString(draw(run_config(), results))
