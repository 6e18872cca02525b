"""Inputs and outputs through the run's store, where that is S3: sent once, found there by every machine.

    <store>/.inputs/<SHA-256>            a file of some job's inputs: what is there is not sent again
    <store>/<run key>/.outputs/...       what the job left, as in its folder `outputs`
    <store>/<run key>/.outputs.N.json    which files machine N left, by which code; written last

Machines name what they need by its hash (`inputs.json` in the job directory) and check it. A job whose driver died has
left its results where the same command finds them. Without such a store all goes by rsync (`cluster`).
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from ...checkpoint.backends.urls import open_backend
from ...checkpoint.retry import Retry, explain
from ...common.files import sha256
from ...common.json import load_json
from ...common.paths import UnsafeNameError, check_name, resolve_below
from ...config import RunConfig, UserError
from ...job import JobDir, read_json, write_json

log = logging.getLogger(__name__)

T = TypeVar("T")

INPUTS = "inputs.json"
"""In a job directory instead of its inputs: path, hash and bytes of every file."""

FRESH = timedelta(hours=12)
"""A file in the store that is older is renewed before it is used: buckets delete by age, in days."""

AT_ONCE = 8
BLOCK = 8 * 2**20

File = dict[str, Any]
"""`path`, `sha256` and `size` of a file."""


class S3Transfer:
    """What goes between this machine and others through a store."""

    def __init__(self, url: str, run_key: str, retry_seconds: float = 120.0) -> None:
        self.url, self.run_key = url.rstrip("/"), run_key
        self._retry = Retry(deadline_seconds=retry_seconds)
        self._backend = open_backend(self.url)

    @classmethod
    def from_config(cls, config: RunConfig, run_key: str) -> "S3Transfer | None":
        """Return it where the run's store can take files for others; None where it cannot.

        Raises:
            UserError: the store's package is missing.
        """
        url = config.checkpoint.store or ""
        return cls(url, run_key, config.launch.timeouts.store) if url.startswith("s3://") else None

    # Inputs.

    def upload_inputs(self, inputs: Path, listing: Path) -> int:
        """See that every file of a folder (links followed) lies in the store, and list them; return the bytes sent.

        Raises:
            UserError: the store does not take them.
        """
        files = [_described(path, inputs) for path in _walk(inputs)]
        there = self._call(self._inputs_there, "looking for inputs")
        old = datetime.now(UTC) - FRESH

        def see_to(file: File) -> int:
            name = file["sha256"]
            found = there.get(name)
            if found is not None and found[0] == file["size"] and (found[1] > old or self._renewed(name)):
                return 0
            put = self._backend.system.put_file
            place = self._backend.path(f".inputs/{name}")
            self._call(lambda: put(str(inputs / file["path"]), place), f"sending {file['path']}")
            return int(file["size"])

        unlike = {file["sha256"]: file for file in files}.values()
        sent = sum(_together(see_to, unlike))
        write_json(listing, files)
        return sent

    def download_inputs(self, job: JobDir) -> int:
        """On a machine: fetch what `inputs.json` names into the job's inputs; return the bytes fetched.

        Raises:
            UserError: something is not there, or is not what it should be.
        """

        def fetch(file: File) -> int:
            target = _below(job.inputs, file["path"])
            if not re.fullmatch("[0-9a-f]{64}", file["sha256"]):
                raise UserError(f"{job.root / INPUTS}: is damaged: {file['path']} has no SHA-256")
            if target.is_file() and target.stat().st_size == file["size"] and sha256(target) == file["sha256"]:
                return 0
            target.parent.mkdir(parents=True, exist_ok=True)
            self._get(f".inputs/{file['sha256']}", target)
            if sha256(target) != file["sha256"]:
                target.unlink()
                raise UserError(f"{self.url}/.inputs/{file['sha256']}: is damaged; delete it and run the command again")
            return int(file["size"])

        return sum(_together(fetch, read_json(job.root / INPUTS)))

    def put_folder(self, folder: Path, name: str) -> None:
        """Put the files of a folder (links followed) into the run's part of the store.

        Raises:
            UserError: the store does not take them.
        """

        def put(path: Path) -> None:
            place = self._backend.path(f"{self.run_key}/{name}/{path.relative_to(folder).as_posix()}")
            self._call(lambda: self._backend.system.put_file(str(path), place), f"sending {path.name}")

        _together(put, _walk(folder))

    def remove(self, name: str) -> None:
        """Remove a folder of the run's part of the store."""
        self._call(lambda: self._backend.remove(f"{self.run_key}/{name}"), "tidying up")

    # Outputs.

    def upload_outputs(self, job: JobDir, machine: int, code: str | None) -> None:
        """On a machine: put what the job left into the store; of all but the first one, the logs.

        Raises:
            UserError: the store does not take it.
        """
        folder = job.logs if machine else job.outputs
        names = [path.relative_to(job.outputs).as_posix() for path in _walk(folder)]

        def put(name: str) -> None:
            place = self._backend.path(f"{self.run_key}/.outputs/{name}")
            self._call(lambda: self._backend.system.put_file(str(job.outputs / name), place), f"sending {name}")

        _together(put, names)
        listing = json.dumps({"files": names, "code": code}).encode()
        self._call(lambda: self._backend.write(self._listing(machine), listing), "listing outputs")

    def listed_outputs(self) -> dict[int, dict[str, Any]]:
        """Return, by machine, what was left: `files` and `code`."""

        def read(machine: int) -> dict[str, Any]:
            data = self._call(lambda: self._backend.read(self._listing(machine)), "looking for outputs")
            try:
                listing = load_json(data, dict)
                return {"files": [check_name(name) for name in listing["files"]], "code": listing["code"]}
            except (ValueError, KeyError, TypeError) as error:
                raise UserError(f"{self.url}/{self._listing(machine)}: is damaged: {error}") from error

        return {machine: read(machine) for machine in self._machines()}

    def download_outputs(self, job: JobDir) -> bool:
        """Fetch what the machines left into the job's outputs; return whether the first one left anything."""
        found = self.listed_outputs()
        names = [name for listing in found.values() for name in listing["files"]]
        # How it ended comes last: where that lies, all lies.
        names.sort(key=lambda name: name == "result.json")
        targets = {name: _below(job.outputs, name) for name in names}  # all of them, before anything is written

        def fetch(name: str) -> None:
            self._get(f"{self.run_key}/.outputs/{name}", targets[name])

        _together(fetch, names[:-1])
        for name in names[-1:]:
            fetch(name)
        return 0 in found

    def delete_outputs(self) -> None:
        """Remove what a job has left, the lists first: half of it never looks whole."""
        lists = [self._listing(machine) for machine in self._machines()]
        _together(lambda name: self._call(lambda: self._backend.delete(name), "tidying up"), lists)
        self._call(lambda: self._backend.remove(f"{self.run_key}/.outputs"), "tidying up")

    def _machines(self) -> list[int]:
        """Return the numbers of the machines that have left something."""
        names = self._call(lambda: self._backend.names(self.run_key), "looking for outputs")
        return sorted(
            int(found[1]) for found in (re.fullmatch(r"\.outputs\.(\d{1,6})\.json", n) for n in names) if found
        )

    def _listing(self, machine: int) -> str:
        return f"{self.run_key}/.outputs.{machine}.json"

    def _inputs_there(self) -> dict[str, tuple[int, datetime]]:
        """Return bytes and time of every file of inputs in the store, by hash."""
        try:
            found = self._backend.system.ls(self._backend.path(".inputs"), detail=True)
        except FileNotFoundError:
            return {}
        return {
            entry["name"].rpartition("/")[2]: (int(entry["size"]), entry["LastModified"])
            for entry in found
            if entry["type"] == "file"
        }

    def _renewed(self, name: str) -> bool:
        """Copy a file in the store onto itself, which makes it young again; return whether that could be done."""
        bucket, key, _ = self._backend.system.split_path(self._backend.path(f".inputs/{name}"))
        try:
            self._backend.system.call_s3(
                "copy_object",
                Bucket=bucket,
                Key=key,
                CopySource={"Bucket": bucket, "Key": key},
                MetadataDirective="REPLACE",
            )
        except Exception as error:  # larger than S3 copies at once, or gone in between
            log.debug("renewing %s: %s", name, error)
            return False
        return True

    def _get(self, name: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        get = self._backend.system.get_file
        self._call(lambda: get(self._backend.path(name), str(part)), f"fetching {target.name}")
        part.replace(target)

    def _call(self, function: Callable[[], T], what: str) -> T:
        try:
            return self._retry.call(function, self.url, what)
        except Exception as error:
            raise explain(error, self.url, what) from error


def _below(folder: Path, name: object) -> Path:
    try:
        return resolve_below(folder, name)
    except UnsafeNameError as error:
        raise UserError(f"{folder}: {error}") from error


def _walk(folder: Path) -> list[Path]:
    """Return all files below a folder, links followed, in order; those that are written just now are left out."""
    found = [Path(root) / name for root, _, names in os.walk(folder, followlinks=True) for name in names]
    return sorted(path for path in found if path.is_file() and not path.name.endswith(".part"))


def _described(path: Path, root: Path) -> File:
    return {"path": path.relative_to(root).as_posix(), "sha256": sha256(path), "size": path.stat().st_size}


def _together(function: Callable[[Any], T], items: Iterable[Any]) -> list[T]:
    """Call a function for all items, several at once; the first error ends it."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="transfer") as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
