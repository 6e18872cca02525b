"""The model card: what a run's model is, how well it does, and the command that makes it again. All of its numbers are
those that the run's files hold; nothing is computed a second time, in another way."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import skytune

from ..common import text
from ..config import UploadConfig, UserError
from ..models import hash_file, is_adapter
from ..pricing.cost import cost_of
from ..report.page import titled
from ..runs.catalog import RunRecord
from ..tasks import TASKS
from ..tasks.classification import wilson
from .command import command_again
from .markdown import escaped, fenced, plain
from .results import classes_of, results_of

TEMPLATE = Path(__file__).with_name("card.md.jinja")

INTENDED = {
    "text-classification": "Saying which of its classes a text belongs to.",
    "image-classification": "Saying which of its classes an image belongs to.",
    "multi-label": "Saying which of its classes hold for a text; any number of them may.",
    "regression": "Giving a number (or several) for a text.",
    "token-classification": "Marking the words of a text that belong to its classes.",
    "causal-lm": "Going on with texts like those that it was trained on.",
    "sft": "Answering prompts like those that it was trained on.",
}
"""What a model of a task is for, where nobody has said more."""


def write_card(run: RunRecord, folder: Path, upload: UploadConfig) -> str:
    """Return the card of a run's model as Markdown with its metadata.

    Args:
        folder: of the model itself, whose files are listed with their hashes.
        upload: licence, languages, template, and the name that the model gets.

    Raises:
        UserError: the run was never scored; the template cannot be used.
    """
    from huggingface_hub import ModelCard

    scores = results_of(run)
    if "test" not in scores:
        raise UserError(
            f"{run.key}: its test split was never scored: `python src/run.py pipeline=evaluate checkpoint={folder}` "
            "with its data does it"
        )
    from jinja2 import TemplateError

    place = Path(upload.template).expanduser() if upload.template else TEMPLATE
    try:
        card = ModelCard.from_template(
            _metadata(run, folder, upload, scores), str(place), **_facts(run, folder, scores)
        )
    except (OSError, UnicodeError, TemplateError) as error:
        raise UserError(f"upload.template={upload.template}: cannot be used: {plain(error)}") from error
    except ValueError as error:
        raise UserError(
            f"upload.template={upload.template}: must begin with ---, card_data and ---: {error}"
        ) from error
    return str(card)


def _metadata(run: RunRecord, folder: Path, upload: UploadConfig, scores: Mapping[str, Any]) -> Any:
    from huggingface_hub import EvalResult, ModelCardData

    task, data = str(run.setting("task.name")), plain(run.data)
    kind = TASKS[task].pipeline if task in TASKS else ""
    hub = run.setting("data.source") == "hub"
    results = [
        EvalResult(
            task_type=kind or "other",
            dataset_type=plain(run.setting("data.name")) if hub else data,
            dataset_name=data,
            dataset_config=run.setting("data.subset") if hub else None,
            dataset_revision=run.setting("data.revision") if hub else None,
            dataset_split=plain(split),
            metric_type=plain(name),
            metric_name=plain(titled(name)),
            metric_value=value,
        )
        for split, found in scores.items()
        for name, value in found["metrics"].items()
        if text.is_number(value)
    ]
    return ModelCardData(
        language=list(upload.language) or None,
        license=upload.license,
        library_name="peft" if is_adapter(folder) else "transformers",
        pipeline_tag=kind or None,
        tags=["skytune", *([plain(task)] if task in TASKS else [])],
        base_model=plain(run.model) if _from_hub(run) else None,
        datasets=[plain(run.setting("data.name"))] if hub else None,
        metrics=sorted({plain(name) for name in scores["test"]["metrics"] if name != "loss"}),
        model_name=_name(run, upload),
        eval_results=results,
    )


def _name(run: RunRecord, upload: UploadConfig) -> str:
    url = str(upload.url or "")
    return plain(url.removeprefix("hf://").split("/")[1] if url.startswith("hf://") else run.key.rpartition("-")[0])


def _from_hub(run: RunRecord) -> bool:
    return run.values.get("weights") is None and not run.setting("model._target_")


def _facts(run: RunRecord, folder: Path, scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the template is given, escaped."""
    result, origin = run.result, run.values.get("origin") or {}
    task = str(run.setting("task.name"))
    sizes, prints = run.values.get("sizes") or {}, run.values.get("fingerprints") or {}
    hourly = run.setting("compute.usd_per_hour")
    cost = cost_of({**result, "run_folder": str(run.folder)}, hourly)
    commit, dirty = origin.get("git_commit"), origin.get("git_dirty")
    revision = run.setting("model.revision")
    device = f"{result.get('world_size', '?')} × {result.get('device', '?')}, {result.get('precision', '?')}"
    rows = {
        "Task": task,
        "Base model": f"{run.model} at {revision}" if revision else run.model,
        "Data": run.data,
        "Hash of the tokenized rows": prints.get("data"),
        "Hash of what the data was read from": scores["test"].get("data_fingerprint"),
        "Rows": ", ".join(f"{count:,} {name}" for name, count in sizes.items()),
        "Parameters": None if result.get("parameters") is None else f"{result['parameters']:,}",
        "Optimizer steps": None if result.get("steps") is None else f"{result['steps']:,}",
        "Hardware": device,
        "Training time": text.duration(run.seconds),
        "Cost": cost.line(),
        "Run": run.key,
        "Trained": origin.get("time"),
        "Code": f"skytune {skytune.__version__}"
        + (f", commit {commit}{' with changes that are not committed' if dirty else ''}" if commit else ""),
    }
    versions = result.get("versions") or run.values.get("versions") or {}
    command = command_again(run)
    return {
        "title": escaped(run.key.rpartition("-")[0]),
        "intended": INTENDED.get(task, "What its author trained it for."),
        "base": escaped(run.model),
        "data": escaped(run.data),
        "facts": [(escaped(name), escaped(value)) for name, value in rows.items() if value],
        "splits": [{"name": escaped(name), "rows": f"{found['n_rows']:,}"} for name, found in scores.items()],
        "scores": _scores(scores),
        "classes": [_class(entry) for entry in classes_of(scores["test"])],
        "calibration": _number(scores["test"].get("calibration_error")),
        "versions": escaped(", ".join(f"{name} {version}" for name, version in versions.items())),
        "weights": [(escaped(file.name), hash_file(file)) for file in sorted(folder.glob("*.safetensors"))],
        "command": fenced(command) if command else "",
        "complete": command and commit and not dirty,
    }


def _number(value: Any) -> str:
    return text.number(value, 4) if text.is_number(value) else ""


def _share(value: Any, rows: Any) -> str:
    """Return a share of rows with its 95 % interval."""
    if not (text.is_number(value) and isinstance(rows, int) and rows > 0):
        return _number(value)
    low, high = wilson(value, rows)
    return f"{_number(value)} ({low:.3f} to {high:.3f})"


def _scores(scores: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the values of every metric, one a split; accuracy is a share of rows."""
    names = list(dict.fromkeys(name for found in scores.values() for name in found["metrics"]))

    def value(name: str, found: Mapping[str, Any]) -> str:
        return _share(found["metrics"].get(name), found["n_rows"] if name == "accuracy" else None)

    names.sort(key=lambda name: name == "loss")  # the last
    return [(escaped(titled(name)), [value(name, found) for found in scores.values()]) for name in names]


def _class(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return a class of the test split: recall is a share of its rows, precision of those that were predicted as it."""
    rows = entry.get("support")
    return {
        "name": escaped(entry.get("name", "?")),
        "precision": _share(entry.get("precision"), entry.get("predicted")),
        "recall": _share(entry.get("recall"), rows),
        "f1": _number(entry.get("f1")),
        "rows": _number(rows),
    }
