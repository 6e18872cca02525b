"""What is said of a promotion: its page, its line, and the tag on the Hub of a model that was published."""

import logging
from typing import Any

from ..common.json import load_json
from ..config import UserError
from ..launch.run_dir import slug
from ..report.page import render
from ..report.scoring import write_file
from ..runs.catalog import RunRecord
from .decision import Decision
from .destination import move_tag
from .publish import RECORD

log = logging.getLogger(__name__)

PAGE = "outputs/promotion.html"
"""In the challenger's folder."""


def model_of(run: RunRecord) -> str:
    """Return the name under which versions follow each other where nobody has said one."""
    return slug(f"{run.data}-{run.setting('task.name')}")


def with_page(decision: Decision, run: RunRecord | None = None) -> dict[str, Any]:
    """Return a decision as plain values, with its page, which is also written into the folder of the run."""
    page = render("promotion.html.jinja", decision=decision, title=f"{decision.model}: {decision.stage}")
    if run is None:
        return {**decision.as_dict(), "page": page}
    write_file(run.folder / PAGE, page.encode())
    return {**decision.as_dict(), "page": page, "file": str(run.folder / PAGE)}


def tell(decision: dict[str, Any], run: RunRecord | None) -> dict[str, Any]:
    """Let the Hub's tag of the stage mean the model that has it now, where it was published there; return the decision
    with what became of that."""
    if run is None:
        return decision
    try:
        published = load_json((run.folder / RECORD).read_bytes(), dict)
        url, commit = str(published["url"]), str(published["commit"])
    except (OSError, ValueError, KeyError):
        return decision
    try:
        move_tag(url, decision["stage"], commit)
    except UserError as error:
        log.warning("THE TAG %s IS AS IT WAS, %s", decision["stage"], error)
        return {**decision, "tag_failed": str(error)}
    return {**decision, "tag": f"{url} at {commit}"}
