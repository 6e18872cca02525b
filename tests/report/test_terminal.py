from typing import Any

import pytest

from skytune.common.text import duration, number, size
from skytune.report import summary

MODEL = "/home/me/.cache/skytune/runs/minilm-movie-reviews-3f2a9c1b/outputs/model"
EXAMPLES = ["python src/run.py data=sst2 epochs=2", "python src/run.py pipeline=evaluate checkpoint=PATH"]


def make(run: dict[str, Any], **changes: Any) -> str:
    test = run["evaluations"]["test"]
    values: dict[str, Any] = {
        "metrics": {**test["metrics"], "n_rows": test["n_rows"]},
        "training": run["training"],
        "model_path": MODEL,
        "dashboard": None,
        "cached": False,
        "examples": EXAMPLES,
        "run_folder": MODEL.removesuffix("/outputs/model"),
    }
    return summary(**{**values, **changes})


def test_summary_says_it_all(run: dict[str, Any]) -> None:
    text = make(run)
    scores = run["evaluations"]["test"]["metrics"]
    for part in (
        f"accuracy {scores['accuracy']:.3f}",
        f"F1 {scores['f1']:.3f}",
        "853 held-out rows",
        "1 min 51 s",
        "71.8 samples/s",
        MODEL,
        "transformers.pipeline('text-classification'",
        "`zenml login --local`",
        "`zenml logout --local`",
        *EXAMPLES,
    ):
        assert part in text
    assert text.isascii() and "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_it_cost_is_said(run: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    line = "n/a, no price known: 2 min 09 s on this machine (compute.usd_per_hour tells what this machine costs)"
    lines = make(run, training={**run["training"], "cost_line": line}).splitlines()
    at = next(i for i, text in enumerate(lines) if text.startswith("  cost "))
    assert " ".join(" ".join(lines[at : at + 2]).split()) == f"cost {line}"
    assert "  cost " not in make(run)


def test_dashboard_address_replaces_the_advice(run: dict[str, Any]) -> None:
    text = make(run, dashboard="http://127.0.0.1:8237/runs/1")
    assert "http://127.0.0.1:8237/runs/1" in text and "zenml login" not in text


def test_cached_run_shows_the_same_numbers(run: dict[str, Any]) -> None:
    fresh, cached = make(run).splitlines(), make(run, cached=True).splitlines()
    (extra,) = [line for line in cached if line not in fresh]
    assert "cache" in extra
    assert [line for line in cached if line != extra] == fresh


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_as_wide_as_the_terminal(run: dict[str, Any], monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = make(run, examples=[]).splitlines()
    wide = [line for line in lines if len(line) > columns and MODEL not in line and "pipeline(" not in line]
    assert not wide and len(lines[0]) == columns


def test_folders_are_said_once(run: dict[str, Any]) -> None:
    assert "run folder" not in make(run)
    elsewhere = make(run, model_path="/models/mine", report="/runs/x/report.html")
    assert "run folder   /home/me/" in elsewhere and "report       /runs/x/report.html" in elsewhere


def test_paths_can_be_pasted(run: dict[str, Any]) -> None:
    text = make(run, model_path="/my models/mine", report="/runs/it's/report.html")
    assert "model        '/my models/mine'" in text and """report       '/runs/it'"'"'s/report.html'""" in text


def test_little_is_known(run: dict[str, Any]) -> None:
    text = make(run, metrics={"accuracy": 1.0, "loss": float("nan"), "n_rows": 1}, training={}, examples=[])
    assert "accuracy 1.000, on 1 held-out row\n" in text
    assert "nan" not in text and "training" not in text and "on more" not in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.78654, "0.787"),
        (1.0, "1.000"),
        (0, "0"),
        (853, "853"),
        (71.83, "71.8"),
        (1960.2, "1,960"),
        (5e-5, "5e-5"),
        (None, "n/a"),
        (float("nan"), "n/a"),
        ("text", "text"),
        (-2.5, "-2.500"),
        (True, "True"),
    ],
)
def test_numbers(value: Any, expected: str) -> None:
    assert number(value) == expected


def test_units() -> None:
    assert [duration(s) for s in (0, 0.0123, 8.42, 59.97, 111.4, 3725)] == [
        "0.0 s",
        "12.3 ms",
        "8.4 s",
        "1 min 00 s",
        "1 min 51 s",
        "1 h 02 min",
    ]
    assert [size(b) for b in (12, 90_868_376, 3_210_000_000, None)] == ["12 B", "90.9 MB", "3.21 GB", "n/a"]
