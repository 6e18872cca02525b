"""How long the machines of a failed job are kept, as people write it."""

import pytest

from skytune.config import ComputeConfig, ConfigError, from_dict


@pytest.mark.parametrize(
    ("written", "minutes"),
    [("30m", 30), ("2h", 120), ("90s", 2), ("0.5h", 30), (45, 45), ("45", 45), (" 1 H ", 60), ("1.1h", 66), (0.5, 1)],
)
def test_spans_are_whole_minutes(written: int | float | str, minutes: int) -> None:
    assert from_dict(ComputeConfig, {"keep_on_failure": written}, "compute").keep_minutes == minutes


@pytest.mark.parametrize("written", ["soon", "-5m", "0", 0, "0s", "1d", "30m2h", "", "1e3", "nan", "٣m"])
def test_nonsense_is_refused_in_one_line(written: int | str) -> None:
    with pytest.raises(ConfigError, match=r"^compute\.keep_on_failure=.*: a time above 0, as 30m, 2h, 90s") as refused:
        from_dict(ComputeConfig, {"keep_on_failure": written}, "compute")
    assert "\n" not in str(refused.value)
