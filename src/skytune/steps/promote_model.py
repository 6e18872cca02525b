"""Step `promote_model`: a stage for a model, where a test says that it is better; or the stage given back."""

import logging
from typing import Annotated, Any

from zenml import log_metadata, step
from zenml.types import HTMLString

from ..config import Pipeline, RunConfig, UserError
from ..config.scrubbing import scrubbed
from .context import run_config
from .model_versions import Version, give_stage, holder, one_at_a_time, roll_back

log = logging.getLogger(__name__)


@step(enable_cache=False)
def promote_model(
    checkpoint: str | None = None, metrics: dict[str, Any] | None = None
) -> tuple[Annotated[dict[str, Any], "decision"], Annotated[HTMLString, "evidence"]]:
    """Decide on a run's model: `checkpoint`, or that of the training whose `metrics` are given.

    After a training nothing that goes wrong here loses anything.
    """
    from ..report.scoring import model_path

    config = run_config()
    place = checkpoint or (model_path(config, metrics["result"]) if metrics else None)
    with scrubbed():
        try:
            decision = _rolled_back(config, place) if config.promote.rollback else _promoted(config, str(place))
        except UserError as error:
            if config.pipeline is Pipeline.promote:
                raise
            log.warning("NOT PROMOTED, %s", error)
            return {"accepted": False, "line": f"not promoted: {error}"}, HTMLString("<p>Nothing was decided.</p>")
    page = decision.pop("page")
    log_metadata({key: decision[key] for key in ("accepted", "line", "model", "stage")})
    return decision, HTMLString(page)


def _promoted(config: RunConfig, place: str) -> dict[str, Any]:
    from ..release.decision import decide
    from ..release.gate import on_the_gate
    from ..release.promotion import model_of, tell, with_page
    from ..release.results import run_of

    limits, run = config.promote, run_of(place)
    model, stage = limits.model or model_of(run), limits.stage.value if limits.stage else ""
    version = Version.of(run.key, place)
    with one_at_a_time(model) as lease:
        before = holder(model, stage)
        if before is not None and before.weights == version.weights:
            raise UserError(f"{run.key} is not promoted to {stage} of {model}: these very weights are there already")
        old = None
        if before is not None and not limits.force:
            before.check()
            old = on_the_gate(config, before.checkpoint)
        log.info("promote_model: %s against %s", run.key, before.name if before else "nobody")
        decision = decide(on_the_gate(config, place), old, limits, model, before.name if before else "")
        if decision.accepted:
            give_stage(model, stage, version, before, lease)
    return tell(with_page(decision, run), run if decision.accepted else None)


def _rolled_back(config: RunConfig, place: str | None) -> dict[str, Any]:
    from ..release.decision import Decision
    from ..release.promotion import model_of, tell, with_page
    from ..release.results import run_of

    model = config.promote.model or model_of(run_of(str(place)))
    stage = config.promote.stage.value if config.promote.stage else ""
    with one_at_a_time(model) as lease:
        now, before = roll_back(model, stage, lease)
    decision = Decision(model, stage, before.name, now.name, True, kind="rollback")
    return tell(with_page(decision), run_of(before.checkpoint))
