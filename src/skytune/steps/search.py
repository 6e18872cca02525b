"""Steps `run_search` and `draw_search`: the trials of a search, run here; the table of them; its page."""

import logging
from typing import Annotated, Any

from zenml import log_metadata, step
from zenml.types import HTMLString

from .context import run_config

log = logging.getLogger(__name__)


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
def draw_search(trials: Any) -> Annotated[HTMLString, "page"]:
    """Draw the table, and write table and page into the search's folder."""
    from ..search import draw

    log.info("draw_search: drawing %d cells", len(trials))
    return HTMLString(draw(run_config(), trials))
