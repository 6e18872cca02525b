"""Copies a model's folder to where it is wanted: any fsspec URL, or a repository on the Hub. What was cut short goes on
where it stopped: files are known by their content."""

import contextlib
import hashlib
import logging
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.backends.hub import LIBRARY, be_patient
from ..checkpoint.retry import Retry, explain
from ..config import UploadConfig, UserError
from ..config.secrets import resolve_secrets
from ..models import hash_file

if TYPE_CHECKING:
    from huggingface_hub import HfApi

log = logging.getLogger(__name__)

SUMS = "SHA256SUMS"
"""What `sha256sum --check` reads; it comes last, so that a folder without it is a half of something."""

CONFIGURATIONS = ("adapter_config.json", "config.json")
"""What transformers looks for first."""


LOADED = re.compile(
    r"[^/]*\.(safetensors|bin|model|index\.json)|(\w+_)?config\.json|chat_template\.\w+|"
    r"(tokenizer|vocab|added_tokens|special_tokens_map)\.json|(vocab|merges)\.txt"
)
"""Files that a model beside them would be loaded with, by transformers or peft."""


def check_address(url: str) -> None:
    """Refuse an address of a kind that nobody here can write to, before hours of training.

    Raises:
        UserError: it is one.
    """
    if url.startswith("hf://"):
        return
    import fsspec

    try:
        fsspec.get_filesystem_class(url.partition("://")[0] if "://" in url else "file")
    except (ValueError, ImportError) as error:
        raise UserError(f"upload.url={url}: {error}") from error


def copy_to(folder: Path, upload: UploadConfig, retry: Retry | None = None) -> dict[str, str]:
    """Copy all files of a folder to `upload.url`; what has arrived already is not sent again.

    Returns:
        `url`; on the Hub also `commit`, and `revision` and `tag` where they are asked for.

    Raises:
        UserError: it cannot be written, or the Hub has the tag for something else.
    """
    url, start = str(upload.url), time.monotonic()
    send = _to_hub if url.startswith("hf://") else _to_files
    try:
        found = (retry or Retry()).call(lambda: send(folder, upload), url, "uploading the model")
    except Exception as error:
        raise explain(error, url, "uploading the model") from error
    size = sum((folder / name).stat().st_size for name in _files(folder))
    log.info("uploaded the model to %s (%.0f MB in %.1f s)", url, size / 1e6, time.monotonic() - start)
    return {"url": url, **found}


def move_tag(url: str, tag: str, commit: str) -> None:
    """Let a tag on the Hub mean another commit.

    Raises:
        UserError: the Hub does not do it.
    """

    def move() -> None:
        api, repo, _ = _hub(url)
        if tag in _tags(api, repo):
            api.delete_tag(repo, tag=tag)
        api.create_tag(repo, tag=tag, revision=commit)

    try:
        Retry().call(move, url, f"setting the tag {tag}")
    except Exception as error:
        raise explain(error, url, f"setting the tag {tag}") from error


def _files(folder: Path) -> list[str]:
    """Return the files' names; whoever finds a configuration, which comes last, finds the weights as well."""
    files = [file.relative_to(folder) for file in folder.rglob("*") if file.is_file()]
    shown = [file.as_posix() for file in files if not any(part.startswith(".") for part in file.parts)]
    return sorted(shown, key=lambda name: (name in CONFIGURATIONS, name))


def _to_files(folder: Path, upload: UploadConfig) -> dict[str, str]:
    import fsspec

    system, root = fsspec.core.url_to_fs(resolve_secrets(upload.url))
    root = root.rstrip("/")
    system.invalidate_cache()
    sums, before = {name: hash_file(folder / name) for name in _files(folder)}, set[str]()
    with contextlib.suppress(FileNotFoundError):
        lines = system.cat_file(f"{root}/{SUMS}").decode(errors="replace").splitlines()
        before = {line.partition("  ")[2] for line in lines} - {""}
    there = {name.removeprefix(f"{root}/") for name in system.find(root)} if system.exists(root) else set[str]()
    if odd := sorted(name for name in there - before - {*sums, SUMS} if LOADED.fullmatch(name)):
        raise UserError(
            f"upload.url={upload.url}: holds {odd[0]}, which would be loaded with this model and is no part of it: "
            "remove it, or name another folder"
        )

    def same(name: str) -> bool:
        if name not in there or system.size(f"{root}/{name}") != (folder / name).stat().st_size:
            return False
        with system.open(f"{root}/{name}") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sums[name]

    # A list of sums may be anybody's: of what it names nothing goes but what a model could be loaded with.
    stale = sorted(name for name in there & before - set(sums) if LOADED.fullmatch(name))
    missing = [name for name in sums if not same(name)]
    if not (stale or missing or SUMS not in there):
        return {}
    # From here on, until the sums are there again, the folder is no model: it has nothing that says how to load it.
    for name in dict.fromkeys((*CONFIGURATIONS, *stale, SUMS)):
        if name in there:
            system.rm_file(f"{root}/{name}")
    for name in dict.fromkeys((*missing, *(name for name in CONFIGURATIONS if name in sums))):
        target = f"{root}/{name}"
        system.makedirs(target.rpartition("/")[0], exist_ok=True)
        system.put_file(str(folder / name), target)
    system.pipe_file(f"{root}/{SUMS}", "".join(f"{digest}  {name}\n" for name, digest in sums.items()).encode())
    return {}


def _hub(url: str) -> "tuple[HfApi, str, str]":
    """Return the Hub's client, the repository, and the folder in it."""
    from huggingface_hub import HfApi

    user, name, *rest = url.removeprefix("hf://").strip("/").split("/")
    be_patient(60.0)
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, library_name=LIBRARY)
    return api, f"{user}/{name}", "/".join(rest)


def _tags(api: "HfApi", repo: str) -> dict[str, str]:
    return {ref.name: ref.target_commit for ref in api.list_repo_refs(repo).tags}


def _to_hub(folder: Path, upload: UploadConfig) -> dict[str, str]:
    api, repo, inside = _hub(str(upload.url))
    with contextlib.suppress(KeyError):  # another process made it at the same moment: the answer then lacks something
        api.create_repo(repo, private=upload.private, exist_ok=True)
    if upload.revision:
        api.create_branch(repo, branch=upload.revision, exist_ok=True)
    tagged = _tags(api, repo).get(upload.tag) if upload.tag else None
    if tagged not in (None, api.repo_info(repo, revision=upload.revision).sha):
        raise _taken(upload, str(tagged))  # before anything is sent
    there = [name.removeprefix(f"{inside}/") for name in api.list_repo_files(repo, revision=upload.revision)]
    try:
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            path_in_repo=inside or None,
            revision=upload.revision,
            commit_message="Upload the trained model",
            allow_patterns=_files(folder),
            delete_patterns=[name for name in there if LOADED.fullmatch(name)],  # but for those that are sent
        ).oid
    except RuntimeError as error:  # around what went wrong with a large file, of which it says nothing
        raise error.__cause__ or error from None
    found: dict[str, Any] = {"commit": commit, "revision": upload.revision, "tag": upload.tag}
    if upload.tag and tagged is None:
        api.create_tag(repo, tag=upload.tag, revision=commit)
    elif upload.tag and tagged != commit:
        raise _taken(upload, str(tagged))
    return {name: value for name, value in found.items() if value}


def _taken(upload: UploadConfig, commit: str) -> UserError:
    return UserError(
        f"upload.tag={upload.tag}: {upload.url} has this tag for another model (commit {commit[:12]}): choose another"
    )
