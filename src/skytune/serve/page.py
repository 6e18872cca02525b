"""The page at /docs: the model's card, and how to ask it. It needs nothing but itself: no script, font or address is
loaded from elsewhere, as servers behind a firewall could not."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

from huggingface_hub.repocard import REGEX_YAML_BLOCK
from markdown_it import MarkdownIt

import skytune

from ..common.json import load_json
from ..launch.run_dir import model_name
from ..report.page import render
from .predictor import Predictor
from .requests import Limits

SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    f"frame-ancestors 'none'; script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
)
LARGEST_CARD = 2**20
SHOWN = 40
"""Classes that are listed."""


def facts_of(predictor: Predictor, limits: Limits, address: str) -> dict[str, Any]:
    """Return what the page says of a model and of the server at an address."""
    folder, names = Path(predictor.saved.folder), predictor.scoring.names
    shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    card = folder / "README.md"
    try:
        results = load_json((folder / "test_results.json").read_bytes(), dict)
        rows = int(results["n_rows"])
        scores = {name: value for name, value in results["metrics"].items() if isinstance(value, float)}
    except (OSError, LookupError, TypeError, AttributeError, ValueError):
        rows, scores = 0, {}  # nobody has scored it here, or not in our form
    limit = f"cut at {predictor.limit:,} tokens" if predictor.limit else "not cut"
    return {
        "name": model_name(str(predictor.checkpoint)),
        "task": predictor.task.name,
        "version": skytune.__version__,
        "address": address,
        "card": card.read_bytes()[:LARGEST_CARD].decode(errors="replace") if card.is_file() else "",
        "scores": scores,
        "scored_rows": rows,
        "facts": {
            "task": predictor.task.name,
            "classes" if predictor.task.name != "regression" else "outputs": shown,
            "texts": f"{limit}; at most {limits.characters:,} letters",
            "a request": f"at most {limits.rows:,} rows, {limits.body_bytes:,} bytes",
            "at once": f"batches of {limits.batch_rows} rows; {limits.queue:,} rows may wait",
            "computed": f"{predictor.world.describe()}, {predictor.world.precision.value}",
        },
    }


def page(facts: dict[str, Any], openapi: dict[str, Any]) -> str:
    """Return the page for what `facts_of` returned and FastAPI's description of the interface."""
    # Of what a card's author wrote, HTML is shown as text, and addresses that run something are no links.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    schema = openapi["paths"]["/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return render(
        "serving.html.jinja",
        facts=facts,
        card=markdown.render(REGEX_YAML_BLOCK.sub("", facts["card"], count=1)),
        paths=openapi["paths"],
        inline=markdown.renderInline,
        schema=json.dumps({key: value for key, value in schema.items() if key != "example"}, indent=2),
        example=json.dumps(schema["example"]),
        script=SCRIPT,
    )
