"""The pipelines, each as the picture of its DAG."""

from typing import Any

from zenml import pipeline
from zenml.enums import ExecutionMode

from ..config import RunConfig, to_dict
from ..steps.evaluate_model import evaluate_model
from ..steps.load_data import load_data
from ..steps.parameters import elsewhere, for_evaluate_model, for_load_data, for_train_model, on
from ..steps.predict_files import predict_files
from ..steps.promote_model import promote_model
from ..steps.publish_model import publish_model
from ..steps.tables import draw_table, run_experiment, run_search
from ..steps.train_model import train_model


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def training(config: dict[str, Any]) -> None:
    """Fine-tune a model: load and split the data, train in worker processes, score."""
    run = RunConfig.parse(config)
    train, validation, test, tokenizer, texts = on(load_data, run)(**for_load_data(run))
    training_step = elsewhere(on(train_model, run), run)
    _, predictions, report = training_step(train, validation, test, tokenizer, **for_train_model(run))
    metrics, _ = on(evaluate_model, run)(
        validation,
        test,
        tokenizer,
        predictions=predictions,
        texts=texts,
        training_report=report,
        **for_evaluate_model(run),
    )
    after = []
    if run.upload.url:
        on(publish_model, run).with_options(enable_cache=False)(metrics=metrics)
        after = ["publish_model"]  # its commit gets the stage's tag
    if run.promote.stage:
        on(promote_model, run).with_options(enable_cache=False)(metrics=metrics, after=after)


@pipeline(execution_mode=ExecutionMode.FAIL_FAST)
def evaluate(config: dict[str, Any]) -> None:
    """Score a trained model, which predicts first, on the validation and test split of a data set."""
    run = RunConfig.parse(config)
    _, validation, test, tokenizer, texts = on(load_data, run)(**for_load_data(run))
    on(evaluate_model, run)(validation, test, tokenizer, texts=texts, **for_evaluate_model(run))


@pipeline(execution_mode=ExecutionMode.FAIL_FAST, enable_cache=False)
def predict(config: dict[str, Any]) -> None:
    """Write a trained model's answers beside the rows of files without labels."""
    run = RunConfig.parse(config)
    # The run's folder knows what is there already, not ZenML's cache.
    step = on(predict_files, run).with_options(enable_cache=False)
    step(checkpoint=str(run.checkpoint.path), files=to_dict(run.predict))


@pipeline(execution_mode=ExecutionMode.FAIL_FAST, enable_cache=False)
def publish(config: dict[str, Any]) -> None:
    """Copy a run's model to where it is wanted, with its card."""
    run = RunConfig.parse(config)
    on(publish_model, run).with_options(enable_cache=False)(checkpoint=str(run.checkpoint.path))


@pipeline(execution_mode=ExecutionMode.FAIL_FAST, enable_cache=False)
def promote(config: dict[str, Any]) -> None:
    """Give a run's model a stage where a test says that it is better, or give the stage back."""
    run = RunConfig.parse(config)
    on(promote_model, run).with_options(enable_cache=False)(checkpoint=run.checkpoint.path)


@pipeline(execution_mode=ExecutionMode.FAIL_FAST, enable_cache=False)
def study(config: dict[str, Any]) -> None:
    """Run an experiment design, one training a cell, and draw its results."""
    run = RunConfig.parse({**config, "cache": False})  # the store of results decides what is finished
    on(draw_table, run)(_tabled(run_experiment, run, "results")(design=to_dict(run.study)))


@pipeline(execution_mode=ExecutionMode.FAIL_FAST, enable_cache=False)
def search(config: dict[str, Any]) -> None:
    """Search for hyperparameters, and draw what was found."""
    run = RunConfig.parse({**config, "cache": False})  # the record of the search decides what is finished
    on(draw_table, run)(_tabled(run_search, run, "trials")(search=to_dict(run.search)))


def _tabled(step: Any, run: RunConfig, output: str) -> Any:
    """Return a step whose output is a table: as parquet, by ZenML's own materializer. It is imported here, because it
    imports pandas, which other pipelines need not pay for."""
    from zenml.integrations.pandas.materializers.pandas_materializer import PandasMaterializer

    return on(step, run).with_options(output_materializers={output: PandasMaterializer})
