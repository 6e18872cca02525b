"""From a configuration to tokenized splits: read, check, cut, drop leaks, shrink, tokenize; in this order."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import BadRows, ConfigError, DataConfig, ModelConfig, UserError
from .columns import fields, missing
from .labels import MISSING, labelled
from .rows import Rows, drop_bad, own_texts, without_labels
from .sources import Source
from .splits import Purpose, collapse, cut, fold_of, shrink, text_keys
from .targets import CLASSES, Encoded, Reading, Targets

logger = logging.getLogger(__name__)

Notes = dict[str, int | str | list[str]]
"""What happened to the data, in words and numbers; `oddities` are lines that a person should read."""


@dataclass
class Prepared:
    """Splits that can be trained and scored on."""

    train: Any
    """`datasets.Dataset` in torch format: what the model reads (see `tokens.tokenize`) and `labels`."""

    validation: Any
    """As `train`; chooses the weights. None where there is neither such a split nor train."""

    test: Any
    """As `train`; scored once, at the end."""

    sets: dict[str, Any]
    """Further evaluation sets, by name, as `train`."""

    tokenizer: Any
    """The tokenizer, or the image processor; None where the data set brings numbers."""

    labels: list[str]
    """Names of the classes, or outputs, in their order."""

    texts: dict[str, Any]
    """By evaluation split, a `datasets.Dataset` of its own texts: `text`, and `where` each stands (`reviews.csv, line
    6`). Splits whose rows are no longer those of the file are left out."""

    notes: Notes
    """What happened on the way: rows read, dropped, truncated; where validation and test came from."""

    fingerprint: str
    """Hash of what the splits were read from."""


@dataclass
class Split:
    """One split on its way: rows, and what is learned from each."""

    rows: Rows
    encoded: Encoded

    def take(self, positions: np.ndarray) -> "Split":
        """Return the rows at these positions."""
        return Split(self.rows.take(positions), self.encoded.take(positions))


def samples(split: Split, count: int = 5) -> list[tuple[str, str, str]]:
    """Return the first rows as a person reads them: where each stands, its label and its text."""
    rows, found = split.rows, []
    texts = [] if rows.text is None else own_texts(rows.take(np.arange(min(count, len(rows)))))
    for place, row in enumerate(texts):
        label = None if rows.label is None else rows.label[place].as_py()
        found.append((row["where"], "" if label is None else str(label), row["text"]))
    return found


def prepare(
    config: DataConfig,
    model: ModelConfig,
    seed: int,
    sets: dict[str, str],
    known: list[str] | None = None,
    task: Reading = CLASSES,
) -> Prepared:
    """Read a data set and return its splits, tokenized for a model.

    Test and validation splits that are missing or unlabelled are cut from train, stratified, by the seed, before
    anything is left out, so that they do not depend on `fraction` and `max_rows`. Then rows whose text stands in a
    later-used split are dropped (from validation where it stands in test; from train where it stands in validation,
    test or a further set). Only then is train shrunk.

    Args:
        config: the data set. Without `train` (to score a trained model) nothing is cut: `test` is scored, and
            `validation` where it is named.
        model: whose tokenizer and greatest length are used.
        seed: decides cuts and the shrunken part where `config.seed` does not.
        sets: further evaluation sets by name: split names or files.
        known: the classes of a trained model that is to be scored; the data's get their numbers, by name.
        task: which columns are read, and what is learned.

    Raises:
        UserError: anything wrong with the data, named with its file and row, and the way out.
        NotReachable: data or model on the Hub, which does not answer.
    """
    seed = seed if config.seed is None else config.seed
    print_ = Source(config).fingerprint(sets)
    notes: Notes = {}
    splits, targets = read_splits(config, seed, sets, notes, known, task)
    if config.drop_leaks:
        _drop_leaks(splits, config, sets, notes)
    if config.train:
        kept = shrink(splits["train"].encoded.strata, config.fraction, config.max_rows, seed)
        splits["train"] = splits["train"].take(kept)
    tokenizer = limit = None
    if splits["test"].rows.text is not None:
        tokenizer, limit = task.opens(config, model)
        notes["max_length"] = limit if limit is not None else "no limit"
    done, texts = {}, {}
    total = 0
    for name, split in splits.items():
        done[name], truncated = targets.lay_out(split.rows, split.encoded, tokenizer, limit)
        done[name].samples = samples(split)  # for the dashboard, while this process stores it
        notes[f"rows_{name}"] = len(done[name])
        notes[f"truncated_{name}"] = truncated
        total += truncated
        if name != "train" and split.rows.text is not None and len(done[name]) == len(split.rows):
            texts[name] = own_texts(split.rows)
    notes["truncated"] = total
    _log_notes(notes)
    return Prepared(
        train=done.pop("train", None),
        validation=done.pop("validation", None),
        test=done.pop("test"),
        sets=done,
        tokenizer=tokenizer,
        labels=targets.names,
        texts=texts,
        notes=notes,
        fingerprint=print_,
    )


def _log_notes(notes: Notes) -> None:
    """Log in one line what a person should know before training."""
    known = [name for name in ("train", "validation", "test") if f"rows_{name}" in notes]
    rows = ", ".join(f"{notes[f'rows_{name}']:,} {name}" for name in known)
    lost = {
        "left out without text or label": notes.get("dropped_bad_rows"),
        "left out of train because they are scored": notes.get("dropped_leaks_train"),
        "left out of validation because they are in test": notes.get("dropped_leaks_validation"),
        f"texts cut off at {notes.get('max_length')} tokens": notes.get("truncated"),
    }
    told = [f"{count:,} {what}" for what, count in lost.items() if count]
    logger.info("data: %s", "; ".join([f"{rows} rows", str(notes["classes"]), *told]))
    for line in notes["oddities"]:  # type: ignore[union-attr]
        logger.warning("data: %s", line)


def read_splits(
    config: DataConfig, seed: int, sets: dict[str, str], notes: Notes, known: list[str] | None, task: Reading
) -> tuple[dict[str, Split], Targets]:
    """Read all splits, check texts and labels, and cut from train what is missing."""
    source = Source(config, task.columns(config))
    dropped = 0

    def read(spec: str, key: str, name: str) -> Rows:
        nonlocal dropped
        rows = task.arrange(without_labels(source.split(spec, key, name), config.missing), config)
        rows, bad = drop_bad(rows, config.bad_rows)
        dropped += bad
        if len(rows) == 0:
            raise UserError(f"{key}={spec}: 0 rows are left in {name}")
        return rows

    def numbered(rows: Rows) -> Split:
        nonlocal dropped
        split = Split(rows, targets.encode(rows))
        there = ~split.encoded.missing
        if config.bad_rows is BadRows.error or not there.any():
            return split
        dropped += int((~there).sum())
        return split.take(np.flatnonzero(there))

    first = "train" if config.train else "test"
    rows = read(str(config.train or config.test), f"data.{first}", first)
    for column in source.columns:
        if column.role == "label" and rows.label is None:
            where = rows.parts[0][0] if rows.parts else rows.name
            taken = [name for other in source.columns if other.needed for name in fields(other.name)]
            raise ConfigError(missing(column.key, column.name, column.name, rows.columns, where, taken))
    lacking = task.lacking(rows, config)
    if first == "test" and lacking.all():
        raise UserError(f"data.test={config.test}: has no labels to score by; pipeline=predict needs none")
    if config.bad_rows is BadRows.drop and not lacking.all():
        rows = rows.take(np.flatnonzero(~lacking))
        dropped += int(lacking.sum())
    targets = task.targets(rows, config, known)
    train = Split(rows, targets.encode(rows))
    _labelled(train, whole=False)
    notes["classes"] = targets.about(train.encoded)
    total = len(rows)
    notes["rows_read"] = total
    _count_duplicates(train, notes)
    whole = train if notes.get("conflicting_texts") else train.take(np.arange(0))
    found: dict[str, Split] = {} if config.train else {"test": train}
    for name, spec in (("test", config.test), ("validation", config.validation)):
        if not config.train and (name == "test" or not spec):
            continue
        if name == "validation" and config.fold is not None and config.folds is not None:
            stay, off = fold_of(train.encoded.strata, config.fold, config.folds, seed)
            found[name], train = train.take(off), train.take(stay)
            found[name].rows.name = name
            notes[f"{name}_from"] = f"part {config.fold + 1} of {config.folds} of train"
            continue
        spec = spec or (name if source.offers(name) else None)
        why = "there is none"
        if spec:
            split = numbered(read(spec, f"data.{name}", name))
            if _labelled(split, whole=True):
                found[name] = split
                notes[f"{name}_from"] = spec
                continue
            why = f"'{spec}' has no labels"
        fraction = config.test_fraction if name == "test" else config.validation_fraction
        size = max(1, round(total * fraction))  # a share of train as it was read: both splits get what they were told
        if size >= len(train.rows):
            raise UserError(f"data.{name}: {why}, and train has too few rows ({total}) to cut one from it")
        stay, off = cut(train.encoded.strata, size, seed, Purpose[name])
        found[name], train = train.take(off), train.take(stay)
        found[name].rows.name = name
        notes[f"{name}_from"] = f"cut from train ({why})"
    splits = {"train": train} if config.train else {}
    splits |= {name: found[name] for name in ("validation", "test") if name in found}
    for name, spec in sets.items():
        splits[name] = numbered(read(spec, f"eval.sets.{name}", name))
        _labelled(splits[name], whole=False)
    notes["dropped_bad_rows"] = dropped + source.malformed
    parts = {name: split.encoded.strata for name, split in splits.items() if name not in sets}
    notes["oddities"] = task.odd(targets, config, whole.rows, whole.encoded.strata, parts)
    return splits, targets


def _labelled(split: Split, whole: bool) -> bool:
    return labelled(split.rows, np.where(split.encoded.missing, MISSING, 0), whole)


def _drop_leaks(splits: dict[str, Split], config: DataConfig, sets: dict[str, str], notes: Notes) -> None:
    """Drop texts that stand in a split that is used later (compared in `splits.normalize`'s form)."""
    all_keys = {name: text_keys(split.rows) for name, split in splits.items()}
    keys = {name: key for name, key in all_keys.items() if key is not None}
    if len(keys) < len(all_keys):
        notes["leaks"] = "not looked for: the data brings neither texts nor token ids"
        return
    if "validation" in keys:
        leak = np.isin(keys["validation"], keys["test"])
        notes["dropped_leaks_validation"] = _drop(splits, "validation", leak)
        keys["validation"] = keys["validation"][~leak]
    if "train" not in keys:
        return
    # A further set that is the train split itself asks for the score on what was learned.
    scored = np.concatenate([key for name, key in keys.items() if name != "train" and sets.get(name) != config.train])
    notes["dropped_leaks_train"] = _drop(splits, "train", np.isin(keys["train"], scored))


def _drop(splits: dict[str, Split], name: str, leak: np.ndarray) -> int:
    count = int(leak.sum())
    if count == len(leak):
        raise UserError(
            f"all {count:,} rows of {name} also stand in a split that is scored later, so none is left; "
            "data.drop_leaks=false keeps them (and makes scores meaningless)"
        )
    if count:
        splits[name] = splits[name].take(np.flatnonzero(~leak))
    return count


def _count_duplicates(train: Split, notes: Notes) -> None:
    """Note rows of train whose text stood there before (case and white space aside), and texts of two classes."""
    keys = text_keys(train.rows, collapse)
    if keys is None:
        return
    texts, first = np.unique(keys, return_inverse=True)
    notes["duplicate_texts"] = len(keys) - len(texts)
    pairs = np.unique(np.stack([first, train.encoded.strata]), axis=1)
    notes["conflicting_texts"] = int((np.bincount(pairs[0]) > 1).sum())
