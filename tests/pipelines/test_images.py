"""The presets of Food-101 and ViT on photographs that are here: a table with `datasets.Image`, as the Hub has it, and a
folder of class folders, through the command."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from PIL import Image

NAMES = ["cake", "pie", "soup"]


def jpeg(number: int) -> bytes:
    """A photograph of a dish whose colour tells which one it is."""
    pixels = np.random.RandomState(number).randint(0, 80, (60, 90, 3), dtype=np.uint8)
    pixels[..., number % 3] += 120
    into = io.BytesIO()
    Image.fromarray(pixels).save(into, "JPEG", quality=80)
    return into.getvalue()


def test_vit_learns_dishes_and_predicts_a_folder(new_checkout: Callable[..., Any], tiny_vit: Path) -> None:
    checkout = new_checkout(warm=True)
    rows = {
        "image": [{"bytes": jpeg(number), "path": f"{number}.jpg"} for number in range(48)],
        "label": [number % 3 for number in range(48)],
    }
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(checkout.home / "train.parquet")
    for number in range(100, 112):
        place = checkout.home / "dishes" / NAMES[number % 3] / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(jpeg(number))
    done = checkout.run(
        "data=food101",
        "model=vit-base",
        f"model.name={tiny_vit}",
        "data.source=files",
        "data.name=dishes",
        "data.train=train.parquet",
        "data.test=dishes",
        "epochs=4",
        "batch.global_size=8",
        "optimizer.lr=0.01",
        "loader.num_workers=0",
        "launch.num_processes=1",
        "compute=cpu",
    )
    assert done.code == 0, done.err
    assert "for transformers.pipeline('image-classification', model=PATH)" in done.out and "top 5" in done.out
    (model,) = (checkout.home / "skytune" / "runs").glob("*/outputs/model")
    scored = json.loads((model / "test_results.json").read_text())
    assert scored["n_rows"] == 12 and scored["metrics"]["accuracy"] >= 0.9
    page = (model.parent / "report.html").read_text()
    assert "soup" in page and "vit" in page
    done = checkout.run(
        "pipeline=predict", f"checkpoint={model}", "predict.input=dishes", "predict.output=out.csv", "compute=cpu"
    )
    assert done.code == 0, done.err
    with (checkout.home / "out.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 12
    right = [row["prediction"] == Path(row["image"]).parts[0] for row in found]
    assert np.mean(right) == scored["metrics"]["accuracy"]
