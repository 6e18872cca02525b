import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from skytune.config import UserError
from skytune.report import write_results


def test_a_file_a_split(run: dict[str, Any], tmp_path: Path) -> None:
    evaluations = {**run["evaluations"], "other/domain": run["evaluations"]["test"]}
    paths = write_results(tmp_path / "model", evaluations, {"test": "abc"})
    assert [p.name for p in paths] == ["validation_results.json", "test_results.json", "other_domain_results.json"]
    found = json.loads(paths[1].read_text())
    assert found["split"] == "test" and found["n_rows"] == 853
    assert found["metrics"] == run["evaluations"]["test"]["metrics"]
    assert found["data_fingerprint"] == "abc"
    assert datetime.fromisoformat(found["created"]).tzinfo is not None
    assert sorted(p.name for p in (tmp_path / "model").iterdir()) == sorted(
        p.name for p in paths
    )  # nothing half written


def test_results_are_replaced(run: dict[str, Any], tmp_path: Path) -> None:
    (path,) = write_results(tmp_path, {"test": run["evaluations"]["validation"]}, "one")
    (again,) = write_results(tmp_path, {"test": run["evaluations"]["test"]}, "two")
    assert path == again
    found = json.loads(path.read_text())
    assert (found["data_fingerprint"], found["metrics"]) == ("two", run["evaluations"]["test"]["metrics"])


def test_a_folder_that_cannot_be_written(run: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*test_results\.json"):
        write_results(tmp_path / "file", {"test": run["evaluations"]["test"]})


def test_two_names_for_one_file(run: dict[str, Any], tmp_path: Path) -> None:
    found = run["evaluations"]["test"]
    with pytest.raises(UserError, match="rename 'a b'"):
        write_results(tmp_path, {"a/b": found, "a b": found})
