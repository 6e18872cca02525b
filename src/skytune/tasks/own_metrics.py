"""Metrics that are not ours: functions and classes of the user's own, and modules of `evaluate`, here or on the Hub."""

import inspect
import re
from collections.abc import Callable
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np

from skytune.config import PACKAGED, ConfigError, UserError
from skytune.config.targets import instantiate, locate, split_spec

from .packaged_metrics import import_evaluate


def run_target(name: str, spec: dict[str, Any], inputs: Any) -> dict[str, float]:
    """Call the user's metric `name` and return its numbers by name.

    A function gets `predictions` and `references` (lists of ints), `logits` (float64 [n, k]) if it names it, and the
    further keys of `spec`; it returns a number, or a dict of numbers whose keys get the prefix `name_`. A class with a
    `compute` method, such as an `evaluate.Metric`, is made first: keys of `spec` that its constructor names go there,
    the others to `compute`.

    Raises:
        UserError: it fails or returns something else.
    """
    key = f"eval.extra_metrics.{name}"
    target, args = split_spec(spec)
    found = locate(target, f"{key}._target_")

    def call() -> Any:
        if isinstance(found, type):
            if not callable(getattr(found, "compute", None)):
                raise ConfigError(f"{key}={target}: a class needs a method compute(predictions=..., references=...)")
            named = _constructor_arguments(found)
            metric = instantiate(
                target,
                {k: v for k, v in args.items() if k in named},
                offered={"keep_in_memory": True} if "keep_in_memory" in named else None,
                key=f"{key}._target_",
            )
            return _compute(metric, inputs, {k: v for k, v in args.items() if k not in named})
        rows = {"predictions": listed(inputs.predictions), "references": listed(inputs.labels)}
        return instantiate(target, {**args, **rows}, offered={"logits": inputs.logits}, key=f"{key}._target_")

    return _numbers(name, _guarded(key, target, call), key)


def run_module(name: str, inputs: Any) -> dict[str, float]:
    """Return the numbers of an `evaluate` module by name; see `load_module`.

    Raises:
        UserError: there is none, or it fails.
    """
    key = f"eval.metrics: {name}"
    metric = load_module(name)
    return _numbers(Path(name).stem, _guarded(key, "it", lambda: _compute(metric, inputs, {})), key)


def load_module(name: str) -> Any:
    """Return the `evaluate.Metric` of a folder (`path/name` holding `name.py`) or, where there is none, of the Hub.

    Raises:
        UserError: there is none, or it cannot be loaded.
    """
    script = module_script(name)
    place = str(script) if script.is_file() else name

    def load() -> Any:
        try:
            # In memory: two runs at once would share (and wait for) one file of rows in evaluate's cache.
            return import_evaluate().load(place, keep_in_memory=True)
        except FileNotFoundError as error:
            if script.is_file():
                raise
            raise UserError(
                f"eval.metrics: {name}: no such metric: none of {', '.join(PACKAGED)}, {script} is missing, and the "
                "Hub does not give one of that name (it may be out of reach)"
            ) from error

    return _guarded(f"eval.metrics: {name}", "it", load)


def module_script(name: str) -> Path:
    """Return where the file of a metric's folder lies, or would lie if it were none of the Hub's.

    Raises:
        UserError: it is missing, and the Hub has no such names.
    """
    path = Path(name).expanduser().absolute()
    script = path if path.suffix == ".py" else path / f"{path.name}.py"
    if not script.is_file() and not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", name):
        raise UserError(f"eval.metrics: {name}: no such metric, {script} is missing")
    return script


def _compute(metric: Any, inputs: Any, options: dict[str, Any]) -> Any:
    """Call `metric.compute` with those of our inputs that its features name."""
    given: dict[str, Any] = {"predictions": listed(inputs.predictions), "references": listed(inputs.labels)}
    features = getattr(metric, "features", None)
    if features:
        names = set(features[0] if isinstance(features, list) else features)
        given = {name: value for name, value in given.items() if name in names}
        if "logits" in names:
            given["logits"] = listed(inputs.logits)
        if "prediction_scores" in names and inputs.binary:
            given["prediction_scores"] = inputs.scores.tolist()
    return metric.compute(**given, **options)


def listed(values: Any) -> list[Any]:
    """Return an array as a list; lists as they are."""
    found: list[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    return found


def _constructor_arguments(cls: type) -> set[str]:
    """Return the names that a class's constructor, or that of a base class, takes."""
    named: set[str] = set()
    for base in cls.__mro__:
        if base is not object and "__init__" in vars(base):
            named |= set(inspect.signature(vars(base)["__init__"]).parameters)
    return named - {"self", "args", "kwargs"}


def _guarded(key: str, what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{key}: {what} failed: {type(error).__name__}: {error}") from error


def _numbers(name: str, value: Any, key: str) -> dict[str, float]:
    found = value if isinstance(value, dict) else {name: value}
    numbers = {}
    for part, number in found.items():
        if isinstance(number, np.ndarray) and number.ndim == 0:
            number = number.item()
        if not isinstance(number, (Number, np.bool_)) or isinstance(number, complex):
            raise UserError(f"{key}: returned {part}={number!r:.60}: must be a number or a dict of numbers")
        # A metric `kappa` that returns {"kappa": ...}, as evaluate's do, is `kappa`, not `kappa_kappa`.
        numbers[str(part) if str(part) == name else f"{name}_{part}"] = float(number)  # type: ignore[arg-type]
    return numbers
