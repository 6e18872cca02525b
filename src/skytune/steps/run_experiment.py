"""Step `run_experiment`: the cells of a design, run here; the table of results."""

import logging
from typing import Annotated, Any

from zenml import log_metadata, step

from .context import whole_config

log = logging.getLogger(__name__)


@step(enable_cache=False)  # the store of results decides what is finished, not the cache
def run_experiment(design: dict[str, Any]) -> Annotated[Any, "results"]:
    """Run the cells that have no result yet, or take results as they are; `design` is there to be seen."""
    from ..experiment import results

    table = results(whole_config())
    done = int((table["status"] == "done").sum())
    spent = table["usd_total"].sum(min_count=1)
    known = {} if spent != spent else {"usd": round(float(spent), 6)}
    log_metadata({"cells": len(table), "done": done, "failed": int((table["status"] == "failed").sum()), **known})
    return table
