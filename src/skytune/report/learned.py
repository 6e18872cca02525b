"""Whether a run has learned anything at all: one line with the likely causes and what to try, or nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..common.text import is_number, number

FEWEST = 10
"""Rows below which nothing is said."""

LOWER = 0.98
"""A loss that never went below this share of the entropy of the classes has not learned to tell them apart."""

FEW_STEPS = 200


def nothing_learned(
    found: Mapping[str, Any], history: Sequence[Mapping[str, Any]], result: Mapping[str, Any], config: Mapping[str, Any]
) -> str:
    """Return what is to be said of a run that is no better than who knows the shares of the classes alone.

    Args:
        found: the evaluation of the test split, as a task's `score` returned it; a task without `majority` in its
            `results` has no such measure.
        history: records of `history.jsonl`.
        result: `result.json`.
        config: the run's configuration as plain values.
    """
    results, scores, rows = found.get("results", {}), found["metrics"], found["n_rows"]
    majority, classes = results.get("majority"), results.get("classes", [])
    if not majority or rows < FEWEST or sum(1 for entry in classes if entry["support"]) < 2:
        return ""
    always = [entry["name"] for entry in classes if entry["predicted"] == rows]
    accuracy, share = scores.get("accuracy"), majority.get("accuracy")
    validated = [(record.get("metrics") or {}).get("loss") for record in history if record.get("kind") == "validation"]
    losses = [float(loss) for loss in validated if loss is not None and is_number(loss)]
    if always:
        what = f"every test row is taken for '{always[0]}'"
    elif is_number(accuracy) and is_number(share) and accuracy <= share:
        what = (
            f"accuracy {number(accuracy)} is not above {number(share)}, that of always saying the most frequent class"
        )
    elif losses and is_number(majority.get("loss")) and min(losses) >= LOWER * majority["loss"]:
        chance = number(majority["loss"])
        what = f"the validation loss never went clearly below {chance}, that of the classes' shares alone"
    else:
        return ""
    optimizer, schedule, model = config["optimizer"], config["schedule"], config["model"]
    causes, words = [], []
    if result.get("steps") is not None:
        if not (schedule["warmup_ratio"] or schedule["warmup_steps"] or schedule["_target_"]):
            causes.append("no warmup")
            words.append("schedule.warmup_ratio=0.1")
        if (steps := result["steps"]) < FEW_STEPS:
            causes.append(f"only {steps:,} steps")
            words.append(f"epochs={config['epochs'] * max(2, -(-FEW_STEPS // max(steps, 1)))}")
            words += ["max_steps=null"] if config.get("max_steps") else []
        elif not model["freeze_backbone"]:
            causes.append(f"a learning rate of {optimizer['lr']:g} is too high")
            words.append(f"optimizer.lr={optimizer['lr'] / 5:g}")
        if not model["pretrained"]:
            causes.append("all weights are new")
    causes.append("labels that do not go with their texts (`pipeline=data` shows some)")
    ways = f"; try the same command with {' '.join(words)}" if words else ""
    return f"nothing was learned: {what}; likely causes: {', '.join(causes)}{ways}"
