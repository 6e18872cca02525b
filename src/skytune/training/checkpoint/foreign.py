"""Whether a checkpoint belongs to the run that would continue from it, and what differs where it does not."""

import json
from collections.abc import Mapping
from typing import Any

from ...common.mappings import flatten
from ...config import UserError
from .manifest import Manifest


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """Return what differs between two nested dicts, one `a.b: X there, Y here` a value, in the order of the keys."""
    mine, theirs = flatten(json.loads(json.dumps(here))), flatten(there)
    return [
        f"{key}: {_say(theirs, key)} there, {_say(mine, key)} here"
        for key in sorted(mine.keys() | theirs.keys())
        if key not in mine or key not in theirs or mine[key] != theirs[key]
    ]


def refuse_foreign(manifest: Manifest, decisive: Mapping[str, Any], where: str) -> None:
    """Refuse to continue from a checkpoint that was trained otherwise.

    Raises:
        UserError: with what differs.
    """
    found = differences(decisive, manifest.decisive)
    if found:
        more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
        raise UserError(f"resume={where}: is of another run, {manifest.run_key}: {'; '.join(found[:3])}{more}")


def _say(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "nothing"
    text = json.dumps(values[key], ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
