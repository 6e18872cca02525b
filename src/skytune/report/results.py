"""What is written of an evaluation or an experiment: each file whole or not at all."""

import contextlib
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from skytune.config import UserError
from skytune.job import write_json


def write_results(
    folder: str | os.PathLike[str],
    evaluations: Mapping[str, Mapping[str, Any]],
    fingerprint: str | Mapping[str, str] | None = None,
) -> list[Path]:
    """Write `<name>_results.json` for every evaluated split (`validation_results.json`, `test_results.json`, ...).

    Each holds `split`, `n_rows`, `metrics`, `classes`, `confusion`, `calibration_error`, `data_fingerprint` and
    `created` (UTC, ISO 8601). A file is replaced as a whole or not at all.

    Args:
        folder: made if missing.
        evaluations: what `evaluate_split` returned, by name.
        fingerprint: hash of the data, one for all or by split name.

    Returns:
        The paths written, in the order of `evaluations`.

    Raises:
        UserError: the folder cannot be written, or two names give one file.
    """
    created = datetime.now(UTC).isoformat(timespec="seconds")
    paths: list[Path] = []
    for name, found in evaluations.items():
        path = Path(folder) / f"{re.sub(r'[^A-Za-z0-9._-]+', '_', name)}_results.json"
        if path in paths:
            raise UserError(f"two evaluation sets would both be written to {path.name}: rename '{name}' in eval.sets")
        values = {
            "split": name,
            "n_rows": found["n_rows"],
            "metrics": found["metrics"],
            "classes": found["classes"],
            "confusion": found["confusion"],
            "calibration_error": found["calibration"]["ece"],
            "data_fingerprint": fingerprint.get(name) if isinstance(fingerprint, Mapping) else fingerprint,
            "created": created,
        }
        try:
            write_json(path, values)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from error
        paths.append(path)
    return paths


def write_file(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all: whoever is killed, or has a full disk, leaves the one before.

    Raises:
        UserError: it cannot be written.
    """
    whole = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        whole.write_bytes(content)
        whole.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            whole.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error
