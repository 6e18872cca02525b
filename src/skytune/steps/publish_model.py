"""Step `publish_model`: a model and its card at `upload.url`."""

import logging
import shlex
from typing import Annotated, Any

from zenml import log_metadata, step
from zenml.types import MarkdownString

from ..config import Pipeline, RunConfig, UserError
from ..config.scrubbing import scrubbed
from .context import run_config

log = logging.getLogger(__name__)


@step(enable_cache=False)
def publish_model(
    checkpoint: str | None = None, metrics: dict[str, Any] | None = None
) -> tuple[Annotated[dict[str, Any], "publication"], Annotated[MarkdownString, "model_card"]]:
    """Publish a run's model: `checkpoint`, or that of the training whose `metrics` are given.

    After a training, a place that cannot be reached is told, and loses nothing.
    """
    from ..report.scoring import model_path

    config = run_config()
    place = checkpoint or model_path(config, (metrics or {})["result"])
    with scrubbed():
        from ..release.publish import publish

        try:
            done = publish(place, config.upload)
        except UserError as error:
            if config.pipeline is Pipeline.publish:
                raise
            later = f"`{_later(config, place)}` does it later"
            log.warning("MODEL NOT PUBLISHED, %s; it lies in %s: %s", error, place, later)
            return {"failed": f"{error}; {later}"}, MarkdownString("Not published.")
    card = done.pop("card")
    log_metadata(done)
    return done, MarkdownString(card.split("\n---\n", 1)[-1])


def _later(config: RunConfig, place: str) -> str:
    """Return the command that publishes it later."""
    upload = {key: value for key, value in vars(config.upload).items() if value not in (None, [], True)}
    values = {key: f"[{','.join(value)}]" if isinstance(value, list) else value for key, value in upload.items()}
    words = [f"upload.{key}={str(value).lower() if value is False else value}" for key, value in values.items()]
    return shlex.join(["python", "src/run.py", "pipeline=publish", f"checkpoint={place}", *words])
