"""What the end of a run says of what may come next."""

import shlex
from typing import Any

import pytest

from skytune.config import Pipeline, RunConfig, from_dict
from skytune.launch import standby
from skytune.pipelines import running
from skytune.pipelines.running import on_more

COMMAND = "python src/run.py data=digits model=efficientnet-lite0 data.max_rows=200 'name=a b'"


@pytest.mark.parametrize(
    ("values", "predicts", "wanted"),
    [
        ({"data": {"max_rows": 200}}, True, ["rows", "files"]),
        ({"data": {"max_rows": 200}}, False, ["rows"]),
        ({}, True, ["files"]),
        ({"pipeline": "evaluate", "data": {"max_rows": 5}, "checkpoint": {"path": "x"}}, True, ["files"]),
    ],
)
def test_it_is_this_run_on_all_rows_and_files_of_ones_own(
    values: dict[str, Any], predicts: bool, wanted: list[str]
) -> None:
    kinds = {
        "rows": ["data=digits", "model=efficientnet-lite0", "name=a b", "data.max_rows=null"],
        "files": ["pipeline=predict", "checkpoint=/a b/model", "predict.input=FILE", "predict.output=out.csv"],
    }
    config = from_dict(RunConfig, values)
    assert Pipeline.training is config.pipeline or "pipeline" in values
    found = on_more(config, COMMAND, "/a b/model", predicts)
    assert [shlex.split(line) for line in found] == [["python", "src/run.py", *kinds[kind]] for kind in wanted]


@pytest.mark.parametrize("operator", ["aws", None])
def test_no_worker_stands_by_while_those_of_other_machines_train(
    monkeypatch: pytest.MonkeyPatch, operator: str | None
) -> None:
    """ZenML's answers, what the active stack has, are given by hand."""
    monkeypatch.setattr(running, "check_orchestrator", lambda client: None)
    monkeypatch.setattr(running, "operator_of", lambda client, compute: operator)
    monkeypatch.setattr(running, "settings_of_active", lambda client: {})
    config = from_dict(RunConfig, {"compute": {"device": "cpu"}})
    standby.begin(config)
    try:
        running._log_target(None, config)  # type: ignore[arg-type]
        assert (standby._waiting is None) == bool(operator)
    finally:
        standby.end()
