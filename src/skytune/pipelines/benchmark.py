"""run_experiment (one training a cell) -> draw_results"""

from typing import Any

from zenml import pipeline
from zenml.enums import ExecutionMode

from ..config import RunConfig, from_dict, to_dict
from ..steps.draw_results import draw_results
from ..steps.parameters import on
from ..steps.run_experiment import run_experiment


@pipeline(execution_mode=ExecutionMode.FAIL_FAST, enable_cache=False)
def benchmark(config: dict[str, Any]) -> None:
    """Run an experiment design and draw its results."""
    run = from_dict(RunConfig, config)
    results = on(run_experiment, run)(design=to_dict(run.benchmark))
    on(draw_results, run)(results)
