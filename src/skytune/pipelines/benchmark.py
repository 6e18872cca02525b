"""run_experiment (one training a cell) -> draw_results"""

from typing import Any

from zenml import pipeline
from zenml.enums import ExecutionMode

from ..config import RunConfig, to_dict
from ..steps.draw_results import draw_results
from ..steps.parameters import on
from ..steps.run_experiment import run_experiment


@pipeline(execution_mode=ExecutionMode.FAIL_FAST, enable_cache=False)
def benchmark(config: dict[str, Any]) -> None:
    """Run an experiment design and draw its results."""
    # ZenML's own for tables: parquet. Imported here, because it imports pandas, which other pipelines need not pay for.
    from zenml.integrations.pandas.materializers.pandas_materializer import PandasMaterializer

    # The store of results decides what is finished, not the cache.
    run = RunConfig.parse({**config, "cache": False})
    cells = on(run_experiment, run).with_options(output_materializers={"results": PandasMaterializer})
    on(draw_results, run)(cells(design=to_dict(run.benchmark)))
