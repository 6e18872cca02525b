import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import class_folder, encoded, pixels
from PIL import Image, ImageOps

from skytune.config import BadRows, DataConfig, ModelConfig, TaskConfig, UserError, from_dict
from skytune.data import Prepared, Source, prepare
from skytune.data.images import arrange, decode, decode_part, image_column, problem_of
from skytune.data.stream import read_shards
from skytune.tasks import chosen, find_task

PICTURE = Image.fromarray(pixels())


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(PICTURE, "JPEG", exif=exif.tobytes())


WHOLE: dict[str, bytes] = {
    **{kind: encoded(PICTURE, kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")},
    "CMYK": encoded(PICTURE.convert("CMYK"), "JPEG"),
    "progressive": encoded(PICTURE, "JPEG", progressive=True),
    **{mode: encoded(PICTURE.convert(mode)) for mode in ("RGBA", "P", "LA", "L", "1")},
    "transparent palette": encoded(PICTURE.convert("P"), "PNG", transparency=0),
    "16 bits": encoded(np.linspace(0, 65535, 600).astype(np.uint16).reshape(20, 30)),
}
BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"is empty \(0 bytes\)"),
    "cut JPEG": (encoded(PICTURE, "JPEG")[:-200], "cannot be read as an image: image file is truncated"),
    "cut PNG": (encoded(PICTURE)[:-200], "cannot be read as an image: "),
    "half a header": (encoded(PICTURE, "JPEG")[:12], "cannot be read as an image: "),
    "web page": (b"<!DOCTYPE html><html>", "is a web page, not an image"),
    "drawing": (b'<?xml version="1.0"?>\n<!-- a --><svg xmlns="x"/>', "is an SVG drawing: render it as PNG"),
    "document": (b"%PDF-1.7", "is a PDF or PostScript document"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "is a PDF or PostScript document"),
    "HEIC": (b"\0\0\0\x18ftypheic" + bytes(20), "is HEIC or AVIF"),
    "text": (b"not an image at all", "cannot be read as an image: is none of JPEG, PNG"),
    "bomb": (encoded(Image.new("1", (12000, 12000))), r"has more than 89,478,485 pixels"),
    "floats": (encoded(Image.new("F", (4, 4)), "TIFF"), "has pixels of 32 bits"),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_images_of_every_kind_become_rgb(kind: str) -> None:
    assert problem_of(WHOLE[kind]) == ""
    image = decode(WHOLE[kind])
    assert image.mode == "RGB" and image.size == (30, 20)
    if kind != "16 bits":
        with Image.open(io.BytesIO(WHOLE[kind])) as own:
            assert np.array_equal(np.asarray(image), np.asarray(ImageOps.exif_transpose(own).convert("RGB")))


@pytest.mark.parametrize("orientation", [*range(10), 255])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_part_is_that_of_the_whole_image_though_fewer_pixels_are_computed(kind: str, orientation: int) -> None:
    down, across = np.mgrid[:301, :403]
    photo = Image.fromarray(
        np.stack([down * 255 // 300, across * 255 // 402, np.hypot(down - 150, across - 90) * 0.7], 2).astype("u1")
    )
    exif = Image.Exif()
    exif[0x0112] = orientation
    data, asked = encoded(photo, kind, exif=exif.tobytes()), []

    def choose(whole: tuple[int, int]) -> tuple[int, int, int, int]:
        asked.append(whole)
        return whole[0] // 5, whole[1] // 4, whole[0] - 7, whole[1] - 3

    whole = decode(data)
    image, box = decode_part(data, choose, 40, 50)
    assert asked == [whole.size]
    assert image.size == (whole.size if kind == "PNG" else tuple(-(-side // 4) for side in whole.size))
    size, bilinear = (40, 50), Image.Resampling.BILINEAR
    found, right = image.resize(size, bilinear, box=box), whole.resize(size, bilinear, box=choose(whole.size))
    apart = np.abs(np.asarray(found, dtype=float) - np.asarray(right))
    assert apart.max() == 0 if kind == "PNG" else apart.mean() < 1
    assert decode_part(data, choose, 300, 300)[0].size == whole.size, "no pixel to spare"
    for part in ((401, 299), (200, 150), (33, 8)):  # all of it, whatever it is shrunk to
        image, box = decode_part(data, lambda whole: (0, 0, *whole), *part)
        assert np.abs(np.asarray(image.resize(size, box=box)).astype(int) - np.asarray(whole.resize(size))).mean() < 2


def test_an_image_is_turned_as_its_exif_says_and_16_bits_keep_their_range() -> None:
    plain, image = decode(encoded(PICTURE, "JPEG")), decode(turned())
    assert np.array_equal(np.asarray(image), np.asarray(plain.transpose(Image.Transpose.ROTATE_270)))
    values = np.asarray(decode(WHOLE["16 bits"]))[..., 0].ravel()
    assert values[0] == 0 and values[-1] == 255 and np.all(np.diff(values.astype(int)) >= 0)


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_no_image_is_said_in_one_line(kind: str, tmp_path: Path) -> None:
    data, message = BROKEN[kind]
    folder = class_folder(tmp_path / "mine")
    (folder / "dog" / "9.jpg").write_bytes(data)
    with pytest.raises(UserError, match=rf"mine, row 13: .*dog/9.jpg {message}") as refused:
        read({"train": str(folder)})
    assert "\n" not in str(refused.value) and "data.bad_rows=drop leaves such rows out" in str(refused.value)
    assert read({"train": str(folder), "bad_rows": BadRows.drop}).notes["dropped_bad_rows"] == 1


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["JPEG", "PNG", "GIF", "WEBP"]), st.integers(0, 2000), st.binary(min_size=1, max_size=30))
def test_whatever_is_said_to_be_whole_can_be_decoded(kind: str, place: int, noise: bytes) -> None:
    data = WHOLE[kind]
    place %= len(data)
    damaged = data[:place] + noise + data[place + len(noise) :]
    if not problem_of(damaged):
        try:
            decode(damaged)
        except OSError:  # progressive parts that the coarsest picture does not need
            assert kind == "JPEG"


def read(values: dict[str, Any]) -> Prepared:
    config = from_dict(DataConfig, {"source": "files", "test_fraction": 0.2, "validation_fraction": 0.2, **values})
    model = ModelConfig(_target_="torch.nn.Identity")
    return prepare(config, model, 1, {}, None, find_task(TaskConfig(name="image-classification")))


def test_a_folder_of_classes_gives_bytes_names_in_order_and_places(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "mine", ("dog", "cat", "Ape"))
    (folder / "cat" / "notes.txt").write_text("x")
    (folder / "cat" / ".hidden.png").write_bytes(b"")
    found = read({"train": str(folder)})
    assert found.labels == ["Ape", "cat", "dog"] and len(found.train) + len(found.validation) + len(found.test) == 18
    for row, own in zip(found.test, found.texts["test"], strict=True):
        assert bytes(row["image"]) == (folder / own["text"]).read_bytes()
        assert found.labels[int(row["labels"])] == own["text"].split("/")[0]
    again = read({"train": f"{folder}/*/*.png"})
    assert [bytes(r["image"]) for r in again.test] == [bytes(r["image"]) for r in found.test]


def test_a_folder_of_splits_offers_them(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "val", "test")):
        class_folder(tmp_path / "mine" / split)
        for file in (tmp_path / "mine" / split).rglob("*.png"):
            file.write_bytes(encoded(pixels(hash(file.name) % 1000 + 5000 * number + ord(file.parent.name[0]))))
    found = read({"train": str(tmp_path / "mine")})
    assert [len(split) for split in (found.train, found.validation, found.test)] == [12, 12, 12]
    assert found.notes["validation_from"] == "validation"
    vehicles = class_folder(tmp_path / "vehicles", ("car", "train"))  # a class that is called as a split is
    assert read({"train": str(vehicles)}).labels == ["car", "train"]


def as_table(folder: Path, file: Path, paths: list[str]) -> dict[str, Any]:
    rows = [{"path": path, "label": path.split("/")[-2]} for path in paths]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": str(file), "image": "path"}


def test_a_table_of_paths_and_one_of_bytes_give_the_same(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "mine")
    paths = sorted(str(path.relative_to(tmp_path)) for path in folder.rglob("*.png"))
    found = read(as_table(folder, tmp_path / "mine.jsonl", paths))
    contents = [{"bytes": (tmp_path / path).read_bytes(), "path": None} for path in paths]
    table = pa.table({"image": contents, "label": [path.split("/")[-2] for path in paths]})
    pa.parquet.write_table(table, tmp_path / "mine.parquet")
    other = read({"train": str(tmp_path / "mine.parquet")})
    for split in ("train", "test"):
        rows = [[(bytes(r["image"]), int(r["labels"])) for r in getattr(p, split)] for p in (found, other)]
        assert rows[0] == rows[1]
    assert chosen(
        TaskConfig(), from_dict(DataConfig, {"source": "files", "train": str(folder)}), ModelConfig()
    ).name == ("image-classification")
    config = from_dict(DataConfig, {"source": "files", "train": str(tmp_path / "mine.parquet")})
    assert chosen(TaskConfig(), config, ModelConfig()).name == "image-classification"


def outside(folder: Path) -> str:
    (folder.parent / "secret.png").write_bytes(encoded(pixels()))
    return "../secret.png"


def link(folder: Path) -> str:
    outside(folder)
    os.symlink(folder.parent / "secret.png", folder / "cat" / "link.png")
    return "cat/link.png"


PATHS: dict[str, tuple[Callable[[Path], str | None], str]] = {
    "missing": (lambda folder: "cat/none.png", r"cat/none.png is not there \(looked for in "),
    "outside": (outside, r"../secret.png leads out of .*, where all images must lie \(data.image_folder="),
    "absolute": (lambda folder: "/etc/passwd", "/etc/passwd leads out of"),
    "link": (link, "cat/link.png leads out of"),
    "a folder": (lambda folder: "cat", "cat is not there"),
    "null": (lambda folder: None, "the image is missing"),
    "a null byte": (lambda folder: "a\0b", "cannot be looked for"),
}


@pytest.mark.parametrize("what", PATHS)
def test_paths_that_lead_nowhere_or_out_of_the_folder_are_named(what: str, tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "mine")
    make, message = PATHS[what]
    rows = [{"path": f"{name}/{n}.png", "label": name} for name in ("cat", "dog") for n in range(6)]
    rows.append({"path": make(folder), "label": "cat"})  # type: ignore[dict-item]
    (folder / "table.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match=rf"table.jsonl, line 13: .*{message}"):
        read({"train": str(folder / "table.jsonl"), "image": "path"})
    if what == "outside":
        values = {"train": str(folder / "table.jsonl"), "image": "path"}
        with pytest.raises(UserError, match=r"line 1: .* is not there"):
            read({**values, "image_folder": str(tmp_path)})


def test_equal_images_leak_and_a_changed_or_moved_one_is_noticed(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "mine")
    config = from_dict(DataConfig, {"source": "files", "train": str(folder)})
    before = Source(config).fingerprint({})
    (folder / "cat" / "0.png").rename(folder / "dog" / "zero.png")
    moved = Source(config).fingerprint({})
    test = class_folder(tmp_path / "test", rows=2)
    found = read({"train": str(folder), "test": str(test)})
    assert (
        int(found.notes["dropped_leaks_train"]) + int(found.notes["dropped_leaks_validation"]) == 4 and before != moved
    )
    table = as_table(folder, tmp_path / "mine.jsonl", ["mine/cat/1.png", "mine/dog/1.png"])
    own = Source(from_dict(DataConfig, {"source": "files", **table}))
    first = own.fingerprint({})
    (folder / "cat" / "1.png").write_bytes(encoded(pixels(77)))
    assert own.fingerprint({}) != first


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": "mine.csv"}, "column 'image' holds texts; data.image=image takes them for paths"),
        ({"train": "mine.csv", "image": "pic"}, "data.image=pic: no such column in .*mine.csv"),
        ({"train": "empty"}, "is a folder without a table in it, and without images"),
    ],
)
def test_a_column_that_holds_no_images_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("image,label\na.png,cat\nb.png,dog\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        read({**values, "train": str(tmp_path / values["train"])})


def test_a_text_task_says_which_task_learns_from_images(tmp_path: Path) -> None:
    config = from_dict(DataConfig, {"source": "files", "train": str(class_folder(tmp_path / "mine"))})
    with pytest.raises(UserError, match="holds images: task=image-classification learns from them"):
        prepare(config, ModelConfig(), 1, {}, None, find_task(TaskConfig(name="text-classification")))


def test_the_packaged_digits_are_there() -> None:
    found = read({"source": "packaged", "name": "digits"})
    assert found.labels == [str(n) for n in range(10)] and found.notes["rows_read"] == 1797


@pytest.mark.skipif(not Path("/usr/share/datasets/fashion-mnist").is_dir(), reason="Debian's dataset-fashion-mnist")
def test_fashion_mnist_of_debian_is_read() -> None:
    found = read({"source": "packaged", "name": "fashion-mnist", "subset": "test", "test_fraction": 0.01})
    assert found.notes["rows_read"] == 10_000 and found.labels[9] == "ankle boot"
    assert decode(bytes(found.test[0]["image"])).size == (28, 28)


def test_a_folder_to_predict_on_becomes_shards_of_its_files(tmp_path: Path) -> None:
    folder = class_folder(tmp_path / "new", rows=3)
    columns = (image_column(DataConfig()),)
    shards = list(read_shards(str(folder), from_dict(DataConfig, {"source": "files"}), columns, 4))
    assert [shard.values["image"].to_pylist() for shard in shards] == [
        ["cat/0.png", "cat/1.png", "cat/2.png", "dog/0.png"],
        ["dog/1.png", "dog/2.png"],
    ]
    found = arrange(shards[1].rows, from_dict(DataConfig, {"source": "files"}))
    assert found.text is not None and found.text.to_pylist() == ["dog/1.png", "dog/2.png"] and not found.odd
    assert found.where(0).endswith("new, row 5")


def rows_of_ones_own(images: list[bytes]) -> Any:
    from datasets import Dataset, Features, Value
    from datasets import Image as Feature

    features = Features({"image": Feature(), "label": Value("string")})
    rows = {"image": [{"bytes": data, "path": None} for data in images], "label": ["cat", "dog"] * (len(images) // 2)}
    return Dataset.from_dict(rows, features=features)


def test_a_function_of_ones_own_may_return_images_of_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    images = [encoded(pixels(row)) for row in range(12)]
    monkeypatch.setattr("pictures.rows_of_ones_own", lambda: rows_of_ones_own(images), raising=False)
    found = read({"_target_": "pictures.rows_of_ones_own"})
    assert {bytes(row["image"]) for row in [*found.train, *found.validation, *found.test]} == set(images)


def test_images_are_mapped_and_nothing_is_left_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    folder = class_folder(tmp_path / "mine", rows=8)
    before = pa.total_allocated_bytes()
    found = read({"train": str(folder)})
    assert pa.total_allocated_bytes() - before < sum(file.stat().st_size for file in folder.rglob("*.png"))
    assert len(found.train) == 10 and not list((tmp_path / "own").iterdir())
    (folder / "cat" / "x.png").symlink_to(folder / "cat" / "0.png")  # inside: as good as the file
    assert read({"train": str(folder)}).notes["rows_read"] == 17
