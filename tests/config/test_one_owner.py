"""Each thing is read once: counts over the source, so that a second reader does not slip in."""

from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("from_dict(RunConfig", 0),  # RunConfig.parse is where a configuration is read
        ("from_dict(cls, values)", 1),
        ("read_job(", 0),  # JobDir.job reads a job once
        ('/ "job.json"', 1),
    ],
)
def test_it_has_one_owner(words: str, most: int) -> None:
    found = [path for path in SOURCE.rglob("*.py") for line in path.read_text().splitlines() if words in line]
    assert len(found) <= most, found
