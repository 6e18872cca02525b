"""Runs the pipeline that a configuration names, and says at the end what came out."""

import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import materializers
from ..config import Pipeline, RunConfig, UserError, to_dict
from ..config.secrets import mask_secrets
from ..launch import standby
from ..launch.gpus import check_machine
from ..launch.origin import origin
from ..launch.remote.machine import machines_asked
from ..launch.sagemaker import is_asked
from ..pricing.cost import cost_of
from ..report import summary, training_rows
from ..report.scoring import model_path, report_path, tracker_places
from ..stacks.flavor import check_orchestrator, operator_of, settings_of_active
from ..steps.cache import expire_lost, expire_unusable
from .graphs import evaluate, predict, promote, publish, search, study, training
from .records import describe, named

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from zenml.client import Client

PIPELINES: dict[Pipeline, Any] = {
    Pipeline.training: training,
    Pipeline.evaluate: evaluate,
    Pipeline.predict: predict,
    Pipeline.publish: publish,
    Pipeline.promote: promote,
    Pipeline.study: study,
    Pipeline.search: search,
}


@dataclass(frozen=True)
class RunSummary:
    """What is said at the end of a run."""

    summary: str
    """For the terminal."""

    save_failed: str
    """Why the last checkpoint, or that of the best weights, could not be saved; empty where they were."""

    nothing_done: str = ""
    """Why nothing came out, where nothing did."""


def run_pipeline(client: "Client", config: RunConfig) -> RunSummary:
    """Run the configured pipeline, `validated`, on the active stack; return what came out.

    Raises:
        UserError: whatever a step names.
    """
    _log_target(client, config)
    config = mask_secrets(config)
    materializers.register()
    expire_lost(client)
    run = _run(client, config)
    finished = client.get_pipeline_run(run.id)
    if config.pipeline is Pipeline.search:
        from ..search import summary as search_summary

        return RunSummary(*search_summary(config))
    if config.pipeline is Pipeline.predict:
        return summarize_predictions(config, finished)
    if config.pipeline is Pipeline.publish:
        return RunSummary(f"published: {told_publication(_left(finished, 'publish_model', 'publication'))}", "")
    if config.pipeline is Pipeline.promote:
        decision = _left(finished, "promote_model", "decision")
        told = [decision["line"]] if decision["accepted"] else []
        told += [f"evidence: {decision['file']}"] if decision.get("file") else []
        return RunSummary("\n".join(told), "", "" if decision["accepted"] else decision["line"])
    if config.pipeline is Pipeline.study:
        return summarize_study(config, finished)
    return summarize(client, config, finished)


def _run(client: "Client", config: RunConfig) -> Any:
    """Run the pipeline; again where an artifact of a cached step cannot be used (each of five can be such a one)."""
    pipeline = named(PIPELINES[config.pipeline], config)
    for _ in range(5):
        try:
            return pipeline(to_dict(config))
        except UserError as error:
            if not config.cache or not expire_unusable(client, error):
                raise
    return pipeline(to_dict(config))


def summarize_study(config: RunConfig, run: Any) -> RunSummary:
    """Return what is to be said of a finished experiment."""
    from ..study import summary as results_summary

    table = run.steps["run_experiment"].outputs["results"][0].load()
    done = bool((table["status"] == "done").any())
    why = "" if done else f"none of {len(table)} cells is done; the first: {table['reason'].iloc[0]}"
    return RunSummary(results_summary(config, table), "", why)


def summarize_predictions(config: RunConfig, run: Any) -> RunSummary:
    """Return what is to be said of files that were predicted on."""
    from ..report.terminal import prediction_summary

    done = run.steps["predict_files"].outputs["prediction_summary"][0].load()
    describe(run, done, ("rows", done["rows"]), None)
    return RunSummary(prediction_summary(done), "")


def _left(run: Any, step: str, name: str) -> dict[str, Any]:
    """Return what a step of a run left; empty where the run has no such step."""
    return dict(run.steps[step].outputs[name][0].load()) if step in run.steps else {}


def told_publication(done: Mapping[str, Any]) -> str:
    """Return where a model was published, or why not, in a line."""
    more = "".join(f", {key} {done[key]}" for key in ("revision", "tag", "commit") if done.get(key))
    return f"NO: {done['failed']}" if done.get("failed") else f"{done['url']}{more}"


def _log_target(client: "Client", config: RunConfig) -> None:
    """Say where the workers will run where that is not plain; refuse machines and devices that are not to be had."""
    check_orchestrator(client)
    trains = config.pipeline is Pipeline.training
    operator = operator_of(client, config.compute) if trains else None
    if operator:
        standby.end()  # no worker of it runs here
        who = "SageMaker" if is_asked(config.compute, settings_of_active(client)) else "SkyPilot"
        log.info("stack %s: the training step's workers go to machines that %s brings up", operator, who)
        return
    if trains and is_asked(config.compute) and not config.compute.local:
        log.info("the training step's workers go to a training job of SageMaker (%s)", config.compute.instance_type)
        return
    if (asked := machines_asked(config.compute)) and not config.compute.local:
        if config.pipeline is Pipeline.study:  # its cells say where they run
            log.info("compute: what it says of machines is ignored; the cells run where study says")
        else:
            raise UserError(_no_machines(asked, client.active_stack_model.name, trains))
    check_machine(config)


def _no_machines(asked: Mapping[str, Any], stack: str, trains: bool) -> str:
    shown = " ".join(f"compute.{key}={value}" for key, value in asked.items())
    here = "compute.local=true beside it computes on this machine"
    if not trains:
        return f"{shown}: only training brings machines up; {here}"
    return (
        f"{shown}: the stack {stack} brings no machines up. `python src/stack.py register aws` registers one that "
        f"does, `zenml stack set aws` chooses it; {here}"
    )


def on_more(config: RunConfig, command: str, model: str, predicts: bool) -> list[str]:
    """Return what may be typed next: the same run on all rows, and predictions for files of one's own.

    Args:
        command: that of this run.
        predicts: whether the task's predictions are columns of a table.
    """
    found = []
    if config.pipeline is Pipeline.training and config.data.max_rows is not None:
        words = [word for word in shlex.split(command) if not word.startswith(("data.max_rows=", "debug="))]
        found.append(shlex.join([*words, "data.max_rows=null"]))
    if predicts:
        words = ["pipeline=predict", f"checkpoint={model}", "predict.input=FILE", "predict.output=out.csv"]
        found.append(shlex.join(["python", "src/run.py", *words]))
    return found


def summarize(client: "Client", config: RunConfig, run: Any) -> RunSummary:
    """Return what is to be said of a finished run."""
    from zenml.utils.dashboard_utils import get_run_url

    steps = run.steps
    last = steps["evaluate_model"]
    metrics = last.outputs["metrics"][0].load()
    trained = config.pipeline is Pipeline.training
    result = metrics["result"]
    training_rows.warn(result.get("trained_on") or {}, {name: s["n_rows"] for name, s in metrics["splits"].items()})
    place = model_path(config, result)
    if trained and not Path(place).is_dir():  # the run's folder was cleared away; the artifact has a copy
        place = steps["train_model"].outputs["model"][0].uri
    page = report_path(result["run_folder"])
    if not page.is_file():
        page = Path(last.outputs["report"][0].uri) / "output.html"
    scores = metrics["splits"]["test"]
    main = next((name for name in (config.checkpoint.metric, *scores) if name in scores and name != "loss"), "loss")
    describe(run, result, (main, scores.get(main)), page)
    publication, decision = _left(run, "publish_model", "publication"), _left(run, "promote_model", "decision")
    released = {"published": told_publication(publication)} if publication else {}
    released |= {"promoted": decision["line"]} if decision else {}
    cached = steps["train_model" if trained else "evaluate_model"].status == "cached"
    text = summary(
        metrics=scores,
        training={**result, "cost_line": cost_of(result, config.compute.usd_per_hour).line()} if trained else {},
        model_path=place,
        dashboard=get_run_url(run),
        cached=cached,
        examples=on_more(config, str(origin()["command"]), place, metrics.get("predicts", True)),
        run_folder=result["run_folder"] if Path(result["run_folder"]).is_dir() else "",
        report=str(page) if page.is_file() else None,
        trackers=tracker_places(result) if trained else {},
        headline=metrics["headline"]["test"],
        pipeline=metrics["pipeline"],
        warning=metrics["warning"],
        released=released,
    )
    failures = ["" if cached else str(result.get("save_failed") or ""), str(publication.get("failed") or "")]
    refused = decision["line"] if decision and not decision["accepted"] else ""
    return RunSummary(text, "; ".join(filter(None, failures)), refused)
