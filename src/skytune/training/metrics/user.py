"""Metrics that are not ours: `evaluate` modules out of a folder, functions and `evaluate.Metric` classes by path."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np

from skytune.config import ConfigError, UserError
from skytune.config.targets import instantiate, locate, split_spec


@dataclass(frozen=True)
class Inputs:
    """The rows of one evaluation."""

    logits: np.ndarray
    """[n, k], float64."""

    labels: np.ndarray
    """[n], int64."""

    @classmethod
    def checked(cls, logits: np.ndarray, labels: np.ndarray) -> "Inputs":
        """Return the rows, or say what is wrong with them.

        Raises:
            UserError: no rows, shapes that do not pair up, a label that is no class, logits that are not finite.
        """
        scores, truth = np.asarray(logits), np.asarray(labels)
        if truth.ndim != 1 or scores.ndim != 2 or len(scores) != len(truth) or scores.shape[1] < 2:
            raise UserError(
                f"cannot score logits of shape {scores.shape} against labels of shape {truth.shape}: "
                "a row of at least two logits is needed for every label"
            )
        if not len(truth):
            raise UserError("nothing to score: the split has 0 rows")
        if not np.issubdtype(truth.dtype, np.integer):
            raise UserError(f"labels of type {truth.dtype}: class numbers must be whole numbers")
        classes = scores.shape[1]
        wrong = np.flatnonzero((truth < 0) | (truth >= classes))
        if wrong.size:
            row, label = int(wrong[0]), int(truth[wrong[0]])
            if label == -1:
                raise UserError(
                    f"{wrong.size} of {len(truth)} rows have no label (-1; the first is row {row}): "
                    "an unlabelled split cannot be scored, give one with labels"
                )
            raise UserError(f"row {row} has the label {label}, but the classes go from 0 to {classes - 1}")
        scores = scores.astype(np.float64)
        # One check for NaN, +inf and a row of nothing but -inf; a single -inf is a class ruled out.
        broken = np.flatnonzero(~np.isfinite(scores.max(axis=1)))
        if broken.size:
            raise UserError(
                f"the model's logits are not finite for {broken.size} of {len(truth)} rows (the first is row "
                f"{int(broken[0])}): it diverged, try a smaller optimizer.lr or precision=fp32"
            )
        return cls(scores, truth.astype(np.int64))

    @property
    def predictions(self) -> np.ndarray:
        """Predicted classes, int64 [n]."""
        return self.logits.argmax(axis=1)

    @property
    def binary(self) -> bool:
        """True for two classes."""
        return self.logits.shape[1] == 2

    @property
    def average(self) -> str:
        """How F1, precision and recall are averaged."""
        return "binary" if self.binary else "macro"

    @property
    def scores(self) -> np.ndarray:
        """The log-odds of class 1 in a two-class task, float64 [n]."""
        return self.logits[:, 1] - self.logits[:, 0]


def run_target(name: str, spec: dict[str, Any], inputs: Inputs) -> dict[str, float]:
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
        rows = {"predictions": inputs.predictions.tolist(), "references": inputs.labels.tolist()}
        return instantiate(target, {**args, **rows}, offered={"logits": inputs.logits}, key=f"{key}._target_")

    return _numbers(name, _guarded(key, target, call), key)


def run_folder(folder: str, inputs: Inputs) -> dict[str, float]:
    """Load the `evaluate` module in `folder` (`path/name` holding `name.py`) and return its numbers by name.

    Raises:
        UserError: no module there, or it fails.
    """
    script, key = folder_script(folder), f"eval.metrics: {folder}"

    def call() -> Any:
        import evaluate

        return _compute(evaluate.load(str(script), keep_in_memory=True), inputs, {})

    return _numbers(script.stem, _guarded(key, script.name, call), key)


def folder_script(folder: str) -> Path:
    """Return the file of the `evaluate` module in `folder`.

    Raises:
        UserError: no module there.
    """
    path = Path(folder).expanduser().absolute()
    script = path if path.suffix == ".py" else path / f"{path.name}.py"
    if not script.is_file():
        raise UserError(f"eval.metrics: {folder}: no such metric, {script} is missing")
    return script


def add(results: dict[str, float], found: dict[str, float], key: str) -> None:
    """Put the numbers `found` into `results`.

    Raises:
        UserError: a name that is there already.
    """
    for name, value in found.items():
        if name in results or name == "n_rows":
            raise UserError(f"{key}: the name '{name}' is taken by another metric")
        results[name] = value


def _compute(metric: Any, inputs: Inputs, options: dict[str, Any]) -> Any:
    """Call `metric.compute` with those of our inputs that its features name."""
    given: dict[str, Any] = {"predictions": inputs.predictions.tolist(), "references": inputs.labels.tolist()}
    features = getattr(metric, "features", None)
    if features:
        names = set(features[0] if isinstance(features, list) else features)
        given = {name: value for name, value in given.items() if name in names}
        if "logits" in names:
            given["logits"] = inputs.logits.tolist()
        if "prediction_scores" in names and inputs.binary:
            given["prediction_scores"] = inputs.scores.tolist()
    return metric.compute(**given, **options)


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
