"""Keys and values that have another name now: taken for one release, with one line that says the new one."""

import logging
import re
from typing import Any

log = logging.getLogger(__name__)

KEYS = {
    "benchmark": "study",
    "compute.fast": "compute.packed",
    "checkpoint.asynchronous": "checkpoint.async_save",
    "checkpoint.on_failure": "checkpoint.on_save_error",
}
"""Keys and groups by their former names."""

VALUES = {"pipeline": ("benchmark", "study"), "resume": ("must", "required")}
"""Values by their keys: the former name, and that of today."""


def renamed_word(text: str) -> str:
    """Return a word of the command line with today's names."""
    found = re.fullmatch(r"([+~]*)([\w.]+)(?:=(.*))?", text, re.DOTALL)
    if found is None:
        return text
    mark, key, value = found.groups()
    new = _key(key)
    if new != key:
        log.warning("%s is %s now; the old name goes with the next release", key, new)
    if value is not None and key in VALUES and value == VALUES[key][0]:
        log.warning("%s=%s is %s=%s now; the old name goes with the next release", key, value, key, VALUES[key][1])
        value = VALUES[key][1]
    return f"{mark}{new}" + ("" if value is None else f"={value}")


def renamed_values(values: Any) -> Any:
    """Return a configuration's plain values, as an earlier release may have written them, with today's names."""
    if not isinstance(values, dict):
        return values
    values = dict(values)
    for old, new in KEYS.items():
        *path, last = old.split(".")
        group: Any = values
        for name in path:
            if not isinstance(group.get(name), dict):
                break
            group[name] = group = dict(group[name])
        else:
            if last in group:
                group.setdefault(new.rpartition(".")[2], group.pop(last))
    for key, (was, now) in VALUES.items():
        if values.get(key) == was:
            values[key] = now
    return values


def _key(key: str) -> str:
    for old, new in KEYS.items():
        if key == old or key.startswith(f"{old}."):
            return new + key[len(old) :]
    return key
