"""`study`: what no design may say, in one line each."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skytune.config import ConfigError, RunConfig, StudyConfig, from_dict
from skytune.config.compose import compose_run

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "empty factor": ({"factors": {"rows": []}}, r"^study\.factors\.rows: no level; give at least one"),
    "no list": ({"factors": {"rows": 5}}, r"^study\.factors\.rows=5: must be a list of levels$"),
    "zero budget": ({"max_usd": 0.0}, r"^study\.max_usd=0: nothing can run"),
    "negative budget": ({"max_usd": -1.0}, r"^study\.max_usd=-1: nothing can run"),
    "free of charge": ({"prices": {"g5.xlarge": 0.0}}, r"^study\.prices\.g5\.xlarge=0: must be above 0"),
    "no seeds": ({"seeds": []}, r"^study\.seeds: no seed"),
    "a seed twice": ({"seeds": [1, 1]}, r"^study\.seeds=\[1, 1\]: a seed is named twice"),
    "no parallel": ({"parallel": 0}, r"^study\.parallel=0: must be at least 1$"),
    "no such factor": ({"factors": {"rows": [1]}, "exclude": [{"batch": 1}]}, r"^study\.exclude: 'batch' is no"),
    "no group": ({"exclude": [5]}, r"^study\.exclude: 5: must be a group"),
    "half an adoption": ({"adopt": "cell"}, r"^study\.adopt=cell: write CELL:JOB"),
    "two at once": ({"adopt": "a:b", "dry_run": True}, "exclude each other"),
    "held": ({"held": "breath"}, r"^study\.held='breath': must be one of global_batch"),
    "unknown key": ({"max_eur": 5}, r"^unknown key 'study\.max_eur': did you mean study\.max_usd\?"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_designs_are_one_line(kind: str) -> None:
    values, message = BAD[kind]
    with pytest.raises(ConfigError, match=message) as told:
        from_dict(StudyConfig, values, "study")
    assert "\n" not in str(told.value)


def test_a_benchmark_needs_a_design() -> None:
    with pytest.raises(ConfigError, match="pipeline=study needs a design"):
        from_dict(RunConfig, {"pipeline": "study"})


def test_a_price_of_this_machine_is_above_0() -> None:
    with pytest.raises(ConfigError, match=r"compute\.usd_per_hour=0: must be above 0"):
        from_dict(RunConfig, {"compute": {"usd_per_hour": 0}})


@pytest.mark.parametrize("name", ["g5.xlarge", "mine"])
def test_a_price_that_is_no_number_is_named(name: str, compose: Callable[..., RunConfig], tmp_path: Path) -> None:
    message = rf"^study\.prices\.{name}='abc': must be a number$"
    with pytest.raises(ConfigError, match=message):
        compose("experiment=laptop", f"study.prices={{{name}: abc}}")
    design = tmp_path / "experiment" / "mine.yaml"
    design.parent.mkdir()
    design.write_text(f"pipeline: study\nstudy:\n  factors: {{rows: [1]}}\n  prices: {{{name}: abc}}\n")
    with pytest.raises(ConfigError, match=message):
        compose_run(CONFIGS, ["experiment=mine"], tmp_path)


def test_free_groups_take_groups_on_the_command_line(compose: Callable[..., RunConfig]) -> None:
    config = compose(
        "pipeline=study",
        "study.factors={rows: [10k, 20], compute: ['p4d.24xlarge x 2']}",
        "study.prices={p4d.24xlarge: 21.5}",
        "study.machines={mine: {accelerator: B200, devices: 2}}",
    )
    assert config.study.factors == {"rows": ["10k", 20], "compute": ["p4d.24xlarge x 2"]}
    assert config.study.prices == {"p4d.24xlarge": 21.5}
    assert config.study.machines == {"mine": {"accelerator": "B200", "devices": 2}}
    more = compose("experiment=laptop", "study.factors={rows: [1]}", "+study.factors.lr=[1e-3]")
    assert more.study.factors["rows"] == [1] and more.study.factors["lr"] == [1e-3]
    assert more.study.factors["processes"] == [1, 2], "the preset's other factors stay"
