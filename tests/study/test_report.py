"""The page of an experiment: whole, self-contained, honest about what is missing; looked at in a browser."""

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from skytune.study.report import build_experiment_page
from skytune.study.table import frame, records

spec = importlib.util.spec_from_file_location(
    "page_in_a_browser", Path(__file__).parents[1] / "report" / "test_page.py"
)
assert spec is not None and spec.loader is not None
pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(pages)


def rows(priced: bool = True) -> list[dict[str, Any]]:
    found = []
    for n in (10_000, 50_000):
        for machine, devices, usd in (("g5.xlarge", 1, 1.006), ("g5.12xlarge", 4, 5.672), ("g5.48xlarge", 8, 16.288)):
            for rule in ("none", "sqrt"):
                for seed in (1, 2, 3):
                    batch = 32 * devices
                    train = n / devices * 0.002 + n / batch * 0.004
                    total = train + 120
                    paid = total / 3600 * usd if priced else None
                    found.append(
                        {
                            "experiment": "e",
                            "cell": f"{n}-{machine}-{rule}-{seed}",
                            "status": "done",
                            "origin": "run",
                            "seed": seed,
                            "model": "m",
                            "data": "d",
                            "accelerator": "A10G",
                            "strategy": "ddp",
                            "precision": "bf16",
                            "devices": devices,
                            "nodes": 1,
                            "global_batch": batch,
                            "per_device_batch": 32.0,
                            "peak_lr": 1e-4 if rule == "none" else 1e-4 * devices**0.5,
                            "samples": n,
                            "steps": -(-n // batch),
                            "train_s": train,
                            "total_s": total,
                            "samples_per_s": n / train,
                            "steady_samples_per_s": n / train,
                            "mfu": 0.2,
                            "usd_total": paid,
                            "usd_per_1000_samples": None if paid is None else paid / n * 1000,
                            "run_key": "key",
                            "job": "runs/key",
                            "accuracy": 0.9 - 0.01 * devices + (0.01 if rule == "sqrt" else 0) + 0.002 * seed,
                            "factor_rows": n,
                            "factor_compute": machine,
                            "factor_scale_lr": rule,
                        }
                    )
    return found


DESIGN = {"factors": {"rows": [10_000, 50_000]}, "held": "per_device_batch", "seeds": [1, 2, 3]}


def page(**changes: Any) -> str:
    return build_experiment_page(**{"name": "instances", "rows": rows(), "design": DESIGN, **changes})


def test_it_is_whole_and_loads_nothing() -> None:
    html = page(planned=[{**rows()[0], "cell": "new", "factor_rows": 99_000, "samples": 99_000, "steps": 3094}])
    assert not re.search(r"<(script|link|img|iframe)\b|@import|src=|url\((?!#)", html)
    assert html.count("<svg") == 5 and html.count("aria-label") == 5
    for text in (
        "Time against cost",
        "Accuracy against cost",
        "Speed-up",
        "Accuracy over global batch",
        "Accuracy over rows",
        "leave-one-out error",
        "Cells that did not run, predicted",
        "99,000",
        "the batch of one device is the same in all cells",
        "scale_lr=sqrt gives back",
    ):
        assert text in html, text
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids)), "two figures share an id"
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)
    assert "#2a78d6" not in re.sub(r"<style>.*?</style>", "", html, count=1, flags=re.S), "colours are the page's own"


def test_the_same_table_gives_the_same_page() -> None:
    assert page() == page()


def test_unknown_prices_are_na_and_never_0() -> None:
    html = page(rows=rows(priced=False))
    assert "no price known" in html and "$0" not in html and "Time against cost" not in html
    assert "Accuracy against time" in html


def test_failed_stopped_and_adopted_cells_are_told() -> None:
    some = rows()
    some[0] |= {"status": "failed", "reason": "no capacity in <us-east-1a>", "accuracy": None}
    some[1] |= {"status": "stopped", "reason": "budget: 5 USD are used"}
    some[2] |= {"origin": "adopted"}
    html = page(rows=some)
    assert "34 of 36" in html and "1 failed, 1 stopped early" in html
    assert "no capacity in &lt;us-east-1a&gt;" in html and "budget: 5 USD are used" in html
    assert "Run by hand and taken in" in html


def test_what_never_started_cost_nothing_and_is_no_unknown_price() -> None:
    some = rows()
    some[0] |= {"status": "stopped", "reason": "budget", "attempts": 0, "usd_total": None, "total_s": None}
    html = page(rows=some)
    assert "all attempts counted" in html and "without a known price" not in html
    assert re.search(r"<td>budget</td><td class=\"n\">\$0\.00</td>", html)
    some[1] |= {"attempts": 1, "usd_total": None}
    assert "1 cell without a known price not counted" in page(rows=some)
    some = [{**some[0]}, *rows(priced=False)[1:]]
    assert "no price known" in page(rows=some) and "without a known price" not in page(rows=some)


def test_it_says_over_how_many_seeds() -> None:
    some = [row for row in rows() if row["seed"] == 1 or row["factor_compute"] == "g5.xlarge"]
    best = max(some, key=lambda row: row["seed"] == 1 and row["factor_compute"] == "g5.48xlarge")
    best["accuracy"] = 0.97
    html = page(rows=some)
    assert "20 cells · 1 to 3 seeds" in html and "; one seed</p>" in html
    assert '<td class="n">0.894 ± 0.005</td><td class="n">3</td>' in html
    assert '<td class="n">0.970</td><td class="n">1</td>' in html
    assert "Without an interval: one seed." in html and "Means over 3 seeds" not in html
    best["accuracy"] = 0.5
    assert "; mean of 3 seeds</p>" in page(rows=some)
    alone = page(rows=[row for row in some if row["seed"] == 1])
    assert "One seed each" in alone and "Means over the seeds" not in alone and ">seeds<" not in alone


def test_a_fit_that_is_far_off_predicts_nothing() -> None:
    some = numbered([100, 200, 400, 800], [100, 200, 400, 800])
    planned = [{**some[0], "factor_rows": 1600, "samples": 1600, "steps": 160}]
    html = page(rows=some, planned=planned)
    assert "90 % interval" in html and "not predicted" not in html
    for row, seconds in zip(some, (100.0, 50.0, 20.0, 5.0), strict=True):
        row["total_s"] = seconds
    html = page(rows=some, planned=planned)
    assert "not predicted: the fit is off by more than a factor of 2" in html and "0.0 ms to" not in html


def numbered(levels: Sequence[Any], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Rows as the table holds them, one a size of the data."""
    made = [
        {
            **rows()[0],
            "cell": f"{level}",
            "seed": 1,
            "factor_rows": level,
            "train_rows": size,
            "samples": size,
            "steps": size // 10,
            "total_s": 10 + size / 50,
            "accuracy": 0.5 + size / 10_000,
        }
        for level, size in zip(levels, sizes, strict=True)
    ]
    return records(frame(made))


def test_one_level_in_words_takes_nothing_from_the_numbers() -> None:
    some = numbered([100, 200, 400, 800, "all"], [100, 200, 400, 800, 1000])
    planned = [{**some[0], "factor_rows": level, "samples": level, "steps": level // 10} for level in (100, 200, 800)]
    html = page(rows=some, planned=planned)
    assert "Cells that did not run" not in html
    assert "Accuracy over rows" in html and "1,000 rows instead of 100 gains 9.0 points" in html
    assert "<td>all (1,000 trained)</td>" in html
    html = page(rows=some, planned=[*planned, {**planned[0], "factor_rows": 600, "samples": 600, "steps": 60}])
    assert "Cells that did not run" in html and html.count("<td>600</td>") == 1 and html.count("<td>100</td>") == 1


def test_rows_are_those_that_trained() -> None:
    html = page(rows=numbered([48, 96, 200, 100_000], [48, 96, 200, 480]), design={})
    assert "480 rows instead of 48 gains" in html and "100,000 rows instead" not in html
    assert "<td>100,000 (480 trained)</td>" in html and "<td>48</td>" in html
    mixed = page(rows=numbered([48, 100_000, "all"], [48, 480, 480]), design={})
    assert all(f"<td>{cell}</td>" in mixed for cell in ("48", "100,000 (480 trained)", "all (480 trained)"))
    (figure,) = re.findall(r"<h3>Accuracy over rows</h3>.*?</figure>", html, flags=re.S)
    assert ">480<" in figure and "100,000" not in figure


@pytest.mark.parametrize("few", [0, 1, 2])
def test_few_cells_still_make_a_page(few: int) -> None:
    html = page(rows=rows()[:few])
    assert f"{few} of {few}" in html and "nan" not in html.lower().replace("finance", "")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 500])
def test_it_looks_like_a_page(tmp_path: Path, width: int) -> None:
    shot = tmp_path / "page.png"
    pages.browser(page(), tmp_path, f"--window-size={width},3300", f"--screenshot={shot}")
    assert pages.distinct_lines(shot) > 500


@pytest.mark.slow
def test_nothing_sticks_out_at_500_pixels(tmp_path: Path) -> None:
    probe = "<script>document.title = document.documentElement.scrollWidth + ' of ' + window.innerWidth</script>"
    some = rows()
    some[0] |= {"status": "failed", "reason": "w" * 300, "cell": "c" * 200}
    html = page(rows=some, name="n" * 200).replace("</body>", f"{probe}</body>")
    title = re.search(r"<title>(\d+) of (\d+)", pages.browser(html, tmp_path, "--window-size=500,3000", "--dump-dom"))
    assert title is not None and int(title[1]) <= int(title[2])
