"""What people write on the command line and in values, spelled out as Hydra wants it; no Hydra needed here."""

import re
from typing import Any

from .errors import ConfigError
from .renamed import renamed_word

SUGAR = {"callback": "callbacks", "metric": "eval.extra_metrics"}
"""Groups whose presets are entries of a dict: where they go."""

GLOBAL = ("task", "data", "debug", "experiment")
"""Groups whose presets may set keys of any group. Hydra wants that said where such a preset is chosen, or in the first
line of its file, which here is the command that runs it."""

INSTANCE_TYPE = re.compile(r"(?:ml\.)?[a-z][a-z0-9-]*\d[a-z0-9-]*\.[a-z0-9-]+")
"""AWS's names of machines, such as `g5.12xlarge`, `u-6tb1.metal` and SageMaker's `ml.g5.12xlarge`: no preset has a dot
in its name."""


def translate(text: str) -> str:
    """Spell out the short forms: `checkpoint=PATH`, `stage=STAGE`, `compute=INSTANCE`, `debug=`, `+metric=name`, ..."""
    text = renamed_word(text)
    key, equals, value = text.partition("=")
    if "@" in key.removesuffix("@_global_"):
        raise ConfigError(f"'{text}': a preset goes into the group of its own name: write group=name")
    if key == "checkpoint" and equals:
        return f"checkpoint.path={quoted(value)}"
    if key in ("stage", "promote") and equals:
        return f"promote.stage={value}"
    if key.lstrip("+") in ("data.label_map", "search.space") and value.startswith("{"):
        return f"{key}={quoted(value)}"
    if text == "debug=":
        text = "debug=traceback"
        key, equals, value = text.partition("=")
    if text == "tracker=null":
        return "tracker=none"  # without a preset the default would hold
    if key == "compute" and INSTANCE_TYPE.fullmatch(value):
        return f"compute.instance_type={value}"
    if value == "null" and key in (*GLOBAL, "model", "optimizer", "schedule", "strategy", "compile", "compute"):
        return translate(f"~{key}")
    bare = key.lstrip("+~")
    if bare in GLOBAL and (equals or key[0] == "~"):
        return text.replace(bare, f"{bare}@_global_", 1)
    if bare in SUGAR and equals:
        return f"+{bare}@{SUGAR[bare]}.{value}={value}"
    return text


def quoted(value: str) -> str:
    """Return a value in quotes, unless it has them."""
    return value if value[:1] in "'\"" else "'" + value.replace("'", "\\'") + "'"


def verbatim(value: Any) -> Any:
    """Return plain values in which nothing is an interpolation."""
    if isinstance(value, dict):
        return {key: verbatim(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [verbatim(inner) for inner in value]
    # A backslash before a `${` escapes it, two are a backslash, and so on.
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value


def empty(values: Any, key: str) -> None:
    """Empty the group of free keys with a dotted name."""
    *path, last = key.split(".")
    for part in path:
        values = values[part]
    values[last] = {}
