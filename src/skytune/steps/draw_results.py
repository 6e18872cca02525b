"""Step `draw_results`: the page of an experiment."""

import logging
from typing import Annotated, Any

from zenml import step
from zenml.types import HTMLString

from .context import whole_config

log = logging.getLogger(__name__)


@step(enable_cache=False)
def draw_results(results: Any) -> Annotated[HTMLString, "page"]:
    """Draw the table, and write table and page into the experiment's folder."""
    from ..experiment import draw

    log.info("draw_results: drawing %d cells", len(results))
    return HTMLString(draw(whole_config(), results))
