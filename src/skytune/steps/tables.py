"""Steps of studies and searches: the cells of a design, or the trials of a search, run here; the table of them; its
page."""

import logging
from functools import partial
from typing import Annotated, Any

from zenml import log_metadata, step
from zenml.types import HTMLString

from ..config import Pipeline
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
def run_search(search: dict[str, Any]) -> Annotated[Any, "trials"]:
    """Run the trials that have no result yet, or take results as they are; `search` is there to be seen."""
    from zenml.client import Client

    from ..search.results import in_numbers, results
    from ..stacks.flavor import settings_of_active

    config = run_config()
    table = results(config, stack=settings_of_active(Client()))
    log_metadata(in_numbers(config))
    return table


@step(enable_cache=False)
def draw_table(table: Any) -> Annotated[HTMLString, "page"]:
    """Draw the table, and write table and page into the folder of the study or search."""
    config = run_config()
    if config.pipeline is Pipeline.search:
        from ..search import draw
    else:
        from ..study import draw
    log.info("draw_table: drawing %d rows", len(table))
    return HTMLString(draw(config, table))
