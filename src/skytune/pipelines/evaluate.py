"""load_data -> evaluate_model, which predicts with a trained model first"""

from typing import Any

from zenml import pipeline
from zenml.enums import ExecutionMode

from ..config import RunConfig
from ..steps.evaluate_model import evaluate_model
from ..steps.load_data import load_data
from ..steps.parameters import for_evaluate_model, for_load_data, on


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def evaluate(config: dict[str, Any]) -> None:
    """Score a trained model on the validation and test split of a data set."""
    run = RunConfig.parse(config)
    _, validation, test, tokenizer = on(load_data, run)(**for_load_data(run))
    on(evaluate_model, run)(validation, test, tokenizer, **for_evaluate_model(run))
