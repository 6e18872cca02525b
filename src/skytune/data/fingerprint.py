"""The fingerprint of data: changes when the rows could have changed, by content and not by name or date."""

import hashlib
from importlib import metadata
from typing import Any

from ..config import DataConfig, DataSource, UserError
from ..models.hashing import hash_file, hash_target, hash_values
from ..models.hub import commit_of
from .files import find_files, looks_like_file
from .sources import PACKAGED, packaged_part


def fingerprint(config: DataConfig, sets: dict[str, str]) -> str:
    """Return a hash of everything that the splits are read from, without parsing any of it.

    Files count by content (remote ones by their store's checksum and size where it has one), data sets on the Hub by
    commit, packaged ones by version, a function of one's own by its source file, its arguments and `data.version`.

    Args:
        config: the data set.
        sets: further evaluation sets (`eval.sets`), by name.

    Raises:
        UserError: a file or package that is not there.
        NotReachable: a data set on the Hub, which does not answer, and there is no copy on this disk.
    """
    found: list[Any] = [config.version]
    splits = {"data.train": config.train, "data.validation": config.validation, "data.test": config.test}
    splits |= {f"eval.sets.{name}": spec for name, spec in sorted(sets.items())}
    for key, spec in splits.items():
        if spec is None:
            continue
        if config.source is DataSource.files or looks_like_file(spec):
            found.append([key, [_file(system, path) for system, path in find_files(spec, key)]])
        else:
            found.append([key, spec])
            if config.source is DataSource.packaged:
                found.append(packaged_part(config, spec, key)[1])
    if config.source is DataSource.packaged:
        found += [config.name, _version(config)]
    elif config.source is DataSource.hub:
        found += [config.name, config.subset, commit_of("dataset", config.name, config.revision)[0]]
    elif config.source is DataSource.target:
        found.append(hash_target(str(config._target_), config.args, "data._target_"))
    return hash_values(found)


def _version(config: DataConfig) -> str:
    try:
        return metadata.version(config.name)
    except metadata.PackageNotFoundError:  # on the path without having been installed
        path, _ = packaged_part(config, "train", "data.train")
        return hash_file(path)


def _file(system: Any, path: str) -> list[Any]:
    """Return the ending and the content's hash of one file (the ending decides how it is read)."""
    from fsspec.implementations.local import LocalFileSystem

    ending = path.rsplit("/", 1)[-1].split(".", 1)[-1]
    if isinstance(system, LocalFileSystem):
        return [ending, hash_file(path)]
    try:
        info = system.info(path)
        for name in ("ETag", "etag", "md5Hash", "content_md5", "sha256"):
            if info.get(name):
                return [ending, str(info[name]), info.get("size")]
        with system.open(path, "rb") as file:
            return [ending, hashlib.file_digest(file, "sha256").hexdigest()]
    except Exception as error:  # every file system has its own
        raise UserError(f"cannot read {path}: {error}") from error


__all__ = ["PACKAGED", "fingerprint"]
