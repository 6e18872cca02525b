"""What a space may be, and what is refused in one line that names the key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skytune.config import ConfigError
from skytune.config.schema.search import dimension, read_space
from skytune.search import Search
from skytune.search.metric import metric_of
from skytune.search.record import search_store
from skytune.search.space import space_of

BAD = [
    ({"optimizer.lrr": [1, 2]}, "search.space: unknown key 'optimizer.lrr': did you mean optimizer.lr?"),
    ({"optimizer.lr": "loguniform(1e-3,1e-3)"}, "an empty range: 0.001 must be below 0.001"),
    ({"optimizer.lr": "uniform(1e-3,1e-6)"}, "an empty range"),
    ({"optimizer.lr": "loguniform(0,1e-3)"}, "must begin above 0"),
    ({"optimizer.lr": "normal(0,1)"}, "must be a list or a range"),
    ({"optimizer.lr": 1e-3}, "must be a list or a range"),
    ({"optimizer.lr": "uniform(1e-6)"}, "uniform takes two or three numbers"),
    ({"optimizer.lr": "loguniform(1e-6,1e-3,1e-6)"}, "loguniform takes two numbers"),
    ({"optimizer.lr": "uniform(nan,1)"}, "uniform takes two or three numbers"),
    ({"optimizer.lr": []}, "an empty list"),
    ({"optimizer.lr": [1e-4, 1e-4]}, "a value is there twice"),
    ({"optimizer.lr": [1e-4]}, "one value changes nothing; write optimizer.lr=0.0001 beside it"),
    ({"optimizer.lr": "uniform(0.1,20)"}, "must be above 0 (and below 10)"),
    ({"model.dropout": "uniform(0,1.5)"}, "model.dropout=1.5"),
    ({"batch.global_size": "int(1.5,8)"}, "int takes whole numbers"),
    ({"batch.global_size": "uniform(8,32)"}, "batch.global_size"),
    ({"checkpoint.every_steps": [1, 2]}, "checkpoint.every_steps decides nothing of what is learned"),
    ({"log.every_steps": "int(1,20)"}, "log.every_steps decides nothing"),
    ({"launch.threads": [1, 2]}, "launch.threads decides nothing"),
    ({"search.trials": [1, 2]}, "search.trials decides nothing"),
    ({"seed": "int(1,9)"}, "repetitions are a list"),
    ({"data.fold": [0, 1]}, "has an effect only with data.folds"),
    ({}, "pipeline=search needs search.space"),
]


@pytest.mark.parametrize(("space", "told"), BAD, ids=[str(list(space.items())) for space, _ in BAD])
def test_a_bad_space_is_refused_in_one_line(design: Any, space: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        space_of(design(space=space))
    assert told in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["1,2", "[1,2]", "{optimizer.lr: [1,2}", "{optimizer.lr: uniform(1,}"])
def test_what_is_no_space_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"search.space") as refused:
        read_space(text)
        dimension(*next(iter(read_space(text).items())))
    assert "\n" not in str(refused.value)


def test_the_command_lines_text_and_a_presets_groups_are_the_same_space() -> None:
    text = "{optimizer.lr: loguniform(1e-6,1e-3), batch.global_size: [16,32,64], model.dropout: uniform(0,0.3)}"
    groups = {
        "optimizer": {"lr": "loguniform(1e-6, 1e-3)"},
        "batch.global_size": [16, 32, 64],
        "model": {"dropout": "uniform(0, 0.3)"},
    }
    quoted = text.replace("loguniform(1e-6,1e-3)", "'loguniform(1e-6,1e-3)'")
    found = [
        {key: str(dimension(key, value)) for key, value in read_space(one).items()} for one in (text, groups, quoted)
    ]
    assert (
        found[0]
        == found[1]
        == found[2]
        == {
            "optimizer.lr": "loguniform(1e-06, 0.001)",
            "batch.global_size": "[16, 32, 64]",
            "model.dropout": "uniform(0, 0.3)",
        }
    )


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.floats(0, 1))
def test_a_range_holds_what_lies_inside_and_nothing_else(low: float, width: float, share: float) -> None:
    if not low < low + width:
        return
    one = dimension("optimizer.lr", f"uniform({low!r},{low + width!r})")
    inside = min(one.high, low + share * width)
    assert one.holds(inside) and one.holds(low) and one.holds(one.high)
    assert not one.holds(one.high + width) and not one.holds(low - width) and not one.holds("a") and not one.holds(True)


@pytest.mark.parametrize(
    ("search", "told"),
    [
        ({"metric": "acuracy"}, "search.metric=acuracy: not among eval.metrics"),
        ({"mode": "up"}, "search.mode=up"),
        ({"halving": 1}, "search.halving=1"),
        ({"rungs": 3}, "search.rungs has an effect only together with search.halving"),
        ({"confirm": 1}, "one seed has no interval"),
        ({"trials": None}, "search.trials: say how many"),
        ({"sampler": "grid", "trials": 3}, "is a range; a grid takes lists alone"),
        ({"sampler": "cmaes", "trials": 3, "space": {"optimizer.lr": "uniform(0.1,1)"}}, "the space has one key"),
        ({"machines": 0}, "search.machines=0"),
        ({"machines": 2, "parallel": 2}, "search.machines and search.parallel exclude each other"),
        ({"machines": 2, "trials": 3}, "search.machines=2: machines are paid for; say how much with search.max_usd"),
        ({"max_usd": 1.0, "trials": 3}, "no price of this machine is known; give compute.usd_per_hour"),
    ],
)
def test_a_bad_design_is_refused_in_one_line(design: Any, search: dict[str, Any], told: str) -> None:
    from skytune.search import checked_plan

    with pytest.raises(ConfigError) as refused:
        config = design(**search)
        metric_of(config)
        checked_plan(config)
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_a_list_is_tried_whole_in_its_order_and_seeds_are_repetitions(design: Any) -> None:
    config = design(space={"optimizer.lr": [1e-3, 1e-2], "seed": [0, 1, 2], "batch.global_size": [8, 16]})
    search = Search(config, search_store("t"))
    assert (search.trials, search.sampler.value, len(search.space.repetitions)) == (4, "grid", 3)
    assert search.space.grid()[1] == {"optimizer.lr": 1e-3, "batch.global_size": 16}
    cells = search.space.cells(search.space.grid()[1])
    assert [cell.seed for cell in cells] == [0, 1, 2]
    assert {cell.config.data.seed for cell in cells} == {42}, "all are scored on the same rows"
