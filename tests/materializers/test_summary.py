import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from skytune.materializers.preview import model_card, preview
from skytune.materializers.summary import describe, label_counts, summarize, token_lengths

datasets = pytest.importorskip("datasets")


def make(**columns: Any) -> Any:
    return datasets.Dataset.from_dict(columns)


def classes(values: list[int], names: list[str]) -> Any:
    features = datasets.Features({"labels": datasets.ClassLabel(names=names)})
    return datasets.Dataset.from_dict({"labels": values}, features=features)


def test_classes_without_rows_and_numbers_without_a_class_are_counted() -> None:
    data = classes([0, 0, 2, -1], ["bad", "so so", "good"])
    assert label_counts(data, "labels") == {"bad": 2, "so so": 0, "good": 1, "-1": 1}


def test_plain_integers_are_labels_only_in_the_label_columns() -> None:
    data = make(label=[3, 3, None], size=[1, 2, 3], labels=[0.5, 1.5, 2.5])
    assert label_counts(data, "label") == {"3": 2, "missing": 1}
    assert label_counts(data, "size") is None and label_counts(data, "labels") is None
    assert label_counts(make(label=list(range(101))), "label") is None


def test_lengths_are_those_of_the_selected_rows() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 60, 5000)
    data = make(input_ids=[[7] * int(n) for n in lengths], labels=[int(n) % 2 for n in lengths])
    summary = summarize(data)["length"]
    assert summary == {
        "min": int(lengths.min()),
        "mean": round(float(lengths.mean()), 2),
        **{f"p{p}": int(np.percentile(lengths, p, method="lower")) for p in (50, 90, 99)},
        "max": int(lengths.max()),
    }
    odd = data.filter(lambda row: row["labels"] == 1)
    found = token_lengths(odd)
    assert found is not None and found.tolist() == [n for n in lengths.tolist() if n % 2]
    assert summarize(odd)["label_counts"] == {"labels": {"1": len(odd)}}


def test_a_summary_of_many_rows_is_quick_and_does_not_go_through_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr(pandas, "DataFrame", None)
    import pyarrow as pa

    offsets = pa.array(np.arange(0, 20 * 200_001, 20, dtype=np.int32))
    ids = pa.ListArray.from_arrays(offsets, pa.array(np.zeros(20 * 200_000, dtype=np.int32)))
    data = datasets.Dataset(pa.table({"input_ids": ids, "labels": pa.array(np.arange(200_000) % 3)}))
    start = time.perf_counter()
    summary = summarize(data.shuffle(seed=0))
    assert time.perf_counter() - start < 30  # 0.05 s on an idle machine
    assert summary["length"]["mean"] == 20 and sum(summary["label_counts"]["labels"].values()) == 200_000


def test_features_in_words() -> None:
    assert describe(datasets.ClassLabel(names=["a", "b"])) == "classes a, b"
    assert describe(datasets.ClassLabel(num_classes=25)).endswith("and 5 more")
    assert describe(datasets.List(datasets.List(datasets.Value("int8")))) == "list of list of int8"
    assert describe({"x": datasets.Value("string")}) == "{x: string}"


def test_a_set_without_rows_has_no_lengths() -> None:
    data = make(input_ids=[[1]], labels=[0]).select([])
    assert "length" not in summarize(data) and summarize(data)["rows"] == 0
    assert "First rows" not in preview(data)


def test_the_preview_is_escaped_small_and_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    names = [evil, "good"]
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            evil: datasets.Value("string"),
            "input_ids": datasets.List(datasets.Value("int32")),
            "labels": datasets.ClassLabel(names=names),
        }
    )
    count = 2000
    data = datasets.Dataset.from_dict(
        {
            "text": [evil * 400] * count,
            evil: ["\x00é"] * count,
            "input_ids": [list(range(i % 300)) for i in range(count)],
            "labels": [i % 2 for i in range(count)],
        },
        features=features,
    ).with_format("torch", columns=["input_ids", "labels"])
    page = preview(datasets.DatasetDict({evil: data, "test": data.select(range(1))}))
    assert "<script" not in page and "&lt;script&gt;" in page
    assert len(page) < 30_000
    assert "http" not in page and "prefers-color-scheme: dark" in page
    assert '<td class="n">1,000</td><td class="n">50.0 %</td>' in page and page.count('<i style="height:') == 24 + 1
    assert page.count("<tr><td") == 5 + 1 and "<td>1 good</td>" in page and "<td>0, 1, 2</td>" in page


def test_the_preview_shows_texts_and_what_was_predicted() -> None:
    data = datasets.Dataset.from_dict({"input_ids": [[1], [2]], "labels": [0, 1]})
    data.samples = [("a.csv, row 1", "pos", "a <b>fine</b> film")]
    page = preview(data)
    assert "a.csv, row 1" in page and "a &lt;b&gt;fine&lt;/b&gt; film" in page
    told = datasets.Dataset.from_dict({"row": [7, 8], "label": [1, -1], "logits": [[0.0, 2.0], [1.0, 0.0]]})
    assert "Predictions" not in preview(told)
    told.class_names = ["neg", "pos"]
    cells = re.findall("<td[^>]*>(.*?)</td>", preview(told).partition("Predictions")[2])
    assert cells[:8] == ["7", "pos", "pos", "neg 0.119, pos 0.881", "8", "unknown", "neg", "neg 0.731, pos 0.269"]
    told.class_names = ["one", "two", "three"]
    assert "Predictions" not in preview(told)


def test_a_models_card() -> None:
    page = model_card({"parameters": 1234567, "architecture": "<Bert>", "labels": ["neg", "pos"], "dtypes": ["F32"]})
    assert "1,234,567" in page and "&lt;Bert&gt;" in page and "neg, pos" in page and "<Bert>" not in page
