"""load_data -> train_model -> evaluate_model"""

from typing import Any

from zenml import pipeline
from zenml.enums import ExecutionMode

from ..config import RunConfig
from ..steps.evaluate_model import evaluate_model
from ..steps.load_data import load_data
from ..steps.parameters import elsewhere, for_evaluate_model, for_load_data, for_train_model, on
from ..steps.train_model import train_model


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def training(config: dict[str, Any]) -> None:
    """Fine-tune a model: load and split the data, train in worker processes, score."""
    run = RunConfig.parse(config)
    train, validation, test, tokenizer = on(load_data, run)(**for_load_data(run))
    training_step = elsewhere(on(train_model, run), run)
    _, predictions, report = training_step(train, validation, test, tokenizer, **for_train_model(run))
    on(evaluate_model, run)(
        validation, test, tokenizer, predictions=predictions, training_report=report, **for_evaluate_model(run)
    )
