"""The cells of a design: levels, what is held constant, names that say what makes a cell."""

from collections.abc import Callable
from typing import Any

import pytest

from skytune.config import ConfigError, RunConfig, from_dict, to_dict
from skytune.study import cells_of
from skytune.study.machines import machine_of

Design = Callable[..., RunConfig]


def test_every_combination_and_seed_but_the_excluded(design: Design) -> None:
    config = design(
        factors={"rows": ["1k", "2k", 50], "batch": [16, 32]}, exclude=[{"rows": "2k", "batch": 32}], seeds=[1, 2]
    )
    cells = cells_of(config)
    assert [(c.levels["rows"], c.levels["batch"], c.seed) for c in cells] == [
        (1000, 16, 1),
        (1000, 16, 2),
        (1000, 32, 1),
        (1000, 32, 2),
        (2000, 16, 1),
        (2000, 16, 2),
        (50, 16, 1),
        (50, 16, 2),
        (50, 32, 1),
        (50, 32, 2),
    ]
    assert len({cell.name for cell in cells}) == len(cells)
    for cell in cells:
        found = (cell.config.data.max_rows, cell.config.batch.global_size, cell.config.seed)
        assert found == (cell.levels["rows"], cell.levels["batch"], cell.seed)
        assert not cell.config.study.factors, "a cell is a plain training"


def test_a_seed_can_be_excluded_for_some_levels(design: Design) -> None:
    config = design(factors={"processes": [1, 2]}, exclude=[{"processes": 2, "seed": [2, 3]}], seeds=[1, 2, 3])
    assert [(c.devices, c.seed) for c in cells_of(config)] == [(1, 1), (1, 2), (1, 3), (2, 1)]


def test_the_name_changes_with_what_makes_the_cell_alone(design: Design) -> None:
    def name(**run: Any) -> str:
        return cells_of(design(run, factors={"rows": [64]}))[0].name

    assert name() == name()
    same = [{"log": {"every_steps": 3}}, {"name": "other"}, {"cache": False}, {"compute": {"usd_per_hour": 2.0}}]
    assert {name(**run) for run in same} == {name()}
    other = [{"epochs": 2}, {"optimizer": {"lr": 1e-3}}, {"seed": 7}, {"launch": {"num_processes": 2}}]
    assert len({name(**run) for run in other} | {name()}) == 1 + len(other)


def test_a_key_that_a_later_version_adds_makes_no_other_cell(design: Design, monkeypatch: pytest.MonkeyPatch) -> None:
    from skytune.study import cells

    config = design(factors={"rows": [64]})
    (before,) = cells_of(config)
    monkeypatch.setattr(cells, "to_dict", lambda value: {**to_dict(value), "a_new_key": {"deep": 1}})
    monkeypatch.setattr(RunConfig, "parse", lambda values: from_dict(RunConfig, _without(values)))
    assert cells_of(config)[0].name == before.name


def _without(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "a_new_key"}


@pytest.mark.parametrize(
    ("held", "batches"), [("global_batch", [32, 32, 32]), ("per_device_batch", [32, 128, 512])], ids=str
)
def test_what_is_held_constant(design: Design, held: str, batches: list[int]) -> None:
    compute = ["g5.xlarge", "g5.12xlarge", "p4d.24xlarge x 2"]
    cells = cells_of(design({"batch": {"global_size": 32}}, factors={"compute": compute}, held=held))
    assert [cell.devices for cell in cells] == [1, 4, 16]
    assert [cell.config.batch.global_size for cell in cells] == batches
    asked = [(c.config.compute.instance_type, c.config.compute.num_nodes, c.config.compute.use_spot) for c in cells]
    assert asked == [("g5.xlarge", 1, False), ("g5.12xlarge", 1, False), ("p4d.24xlarge", 2, False)]


def test_steps_held_constant(design: Design) -> None:
    config = design({"max_steps": 40}, factors={"batch": [8, 16]}, held="steps")
    assert [(cell.steps, cell.samples) for cell in cells_of(config)] == [(40, 320), (40, 640)]
    with pytest.raises(ConfigError, match=r"study\.held=steps needs max_steps$"):
        cells_of(design(factors={"batch": [8]}, held="steps"))


def test_a_level_may_set_several_keys(design: Design) -> None:
    levels = [{"label": "small", "batch": 8, "optimizer.lr": 0.01}, {"label": "large", "batch": 32, "lr": 0.02}]
    cells = cells_of(design(factors={"recipe": levels}))
    found = [(cell.levels["recipe"], cell.config.batch.global_size, cell.config.optimizer.lr) for cell in cells]
    assert found == [("small", 8, 0.01), ("large", 32, 0.02)]


def test_the_learning_rate_follows_the_batch(design: Design) -> None:
    cells = cells_of(design({"schedule": {"scale_reference": 16}}, factors={"batch": [16, 64], "scale_lr": ["sqrt"]}))
    assert [cell.config.schedule.lr_scale(cell.config.batch.global_size) for cell in cells] == [1.0, 2.0]


def test_any_key_is_a_factor_and_strategies_too(design: Design) -> None:
    cells = cells_of(design(factors={"strategy": ["ddp", "fsdp"], "batch.pad_multiple": [1, 8]}))
    assert [str(cell.config.strategy.name.value) for cell in cells] == ["ddp", "ddp", "fsdp", "fsdp"]
    assert [cell.config.batch.pad_multiple for cell in cells] == [1, 8, 1, 8]


@pytest.mark.parametrize(
    ("level", "wanted"),
    [
        ("g5.xlarge", ("g5.xlarge", "A10G", 1, 1, False)),
        ("p4d.24xlarge x 2", ("p4d.24xlarge", "A100", 8, 2, False)),
        ("p4d.24xlarge x 4 nodes spot", ("p4d.24xlarge", "A100", 8, 4, True)),
        ("g5.xlarge spot", ("g5.xlarge", "A10G", 1, 1, True)),
        ("mine x 3", ("mine", "B200", 2, 3, False)),
    ],
    ids=str,
)
def test_machines_by_name(level: str, wanted: tuple[Any, ...]) -> None:
    found = machine_of(level, {"mine": {"accelerator": "B200", "devices": 2}})
    assert (found.instance, found.accelerator, found.devices, found.nodes, found.spot) == wanted


BAD = {
    "unknown instance": (
        {"compute": ["g9.xlarge"]},
        r"compute=g9\.xlarge: unknown instance 'g9\.xlarge': did you mean",
    ),
    "no instance at all": ({"compute": ["a b c"]}, r"compute=a b c: unknown instance"),
    "unknown factor": ({"colour": ["red"]}, r"study\.factors\.colour: no such factor"),
    "wrong value": ({"batch": [0]}, r"study, cell batch 0: batch\.global_size=0: must be at least 1"),
    "wrong type": ({"rows": ["many"]}, r"data\.max_rows='many': must be a whole number"),
    "twice": ({"rows": ["1k", 1000]}, r"study\.factors\.rows: the level 1000 is there twice"),
    "a list": ({"rows": [[1, 2]]}, r"a level is a value or a group of keys, not a list"),
    "unknown strategy": ({"strategy": ["magic"]}, r"strategy\.name='magic'"),
    "two local nodes": ({"compute": ["local x 2"]}, r"local is this one machine"),
    "thousands": ({"rows": list(range(1, 200)), "batch": list(range(1, 200))}, r"more than 1000 cells"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_factors_are_one_line(design: Design, kind: str) -> None:
    factors, message = BAD[kind]
    with pytest.raises(ConfigError, match=message) as told:
        cells_of(design(factors=factors))
    assert "\n" not in str(told.value)


def test_nothing_left(design: Design) -> None:
    with pytest.raises(ConfigError, match="leaves no cell"):
        cells_of(design(factors={"rows": [8]}, exclude=[{"rows": 8}]))


CONTRADICTIONS = {
    "a factor for seeds": ({"factors": {"seed": [1, 2]}}, r"factors\.seed: study\.seeds lists the seeds"),
    "two for one key": (
        {"factors": {"batch": [8, 16], "batch.global_size": [4]}},
        r"'batch' and 'batch\.global_size' both set batch\.global_size; keep one",
    ),
    "one machine, two names": (
        {"factors": {"compute": ["g5.xlarge", "g5.xlarge x 1"]}},
        r"'compute g5\.xlarge x 1' and 'compute g5\.xlarge' are the same training",
    ),
    "processes of a rented machine": (
        {"factors": {"compute": ["g5.12xlarge"], "processes": [1, 4]}},
        r"g5\.12xlarge runs one process on each of its 4 devices a node: exclude processes 1 there",
    ),
    "an exclusion of nothing": (
        {"factors": {"rows": [100, 200]}, "exclude": [{"rows": 101}]},
        r"study\.exclude: rows has no level 101 \(100, 200\)",
    ),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_no_factor_is_ignored_without_a_word(design: Design, kind: str) -> None:
    keys, message = CONTRADICTIONS[kind]
    with pytest.raises(ConfigError, match=message) as told:
        cells_of(design(**keys))
    assert "\n" not in str(told.value)


def test_what_fits_is_taken(design: Design) -> None:
    exclude = [{"compute": "g5.12xlarge", "processes": 1}, {"compute": "local", "processes": 4}, {"rows": None}]
    factors = {"compute": ["g5.12xlarge", "local"], "processes": [1, 4], "rows": [100, None]}
    assert [cell.devices for cell in cells_of(design(factors=factors, exclude=exclude))] == [4, 1]


@pytest.mark.parametrize(
    "run",
    [
        {"checkpoint": {"every_steps": 7, "keep": 5, "store": "/elsewhere"}, "launch": {"timeouts": {"store": 1.0}}},
        {"compute": {"device": "cpu", "region": "eu-west-1", "keep_on_failure": 30, "max_hours": 2.0}},
    ],
    ids=["checkpoint", "compute"],
)
def test_what_decides_nothing_makes_no_other_cell(design: Design, run: dict[str, Any]) -> None:
    base = {"checkpoint": {"select": "last"}, "compute": {"device": "cpu"}}
    plain = cells_of(design(base, factors={"rows": [32]}))
    assert [c.name for c in cells_of(design({**base, **run}, factors={"rows": [32]}))] == [c.name for c in plain]
    other = {"checkpoint": {"select": "best"}}
    assert [c.name for c in cells_of(design({**base, **other}, factors={"rows": [32]}))] != [c.name for c in plain]
