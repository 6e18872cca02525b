"""Secrets of a configuration: a value may only name the variable that holds one (`'${oc.env:HF_TOKEN}'`).

A value counts as a secret if its key is named like one (`api_token`, `password`), if it stands in the environment under
such a name (`HF_TOKEN`), if it is the password or a signed parameter of a URL, or what follows `Bearer`. In its place
comes `<env:HF_TOKEN>`, in the job file, in ZenML's store, in the report, in trackers and checkpoints; the value itself
travels in the environment alone. One that was typed is refused: it would stand in the shell's history and in the lists
of processes.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import ConfigError
from .schema.run import RunConfig
from .serialize import to_dict

SHORTEST = 12
"""Shortest value of the environment that is looked for elsewhere: a shorter one may be an ordinary word."""

LAST = re.compile(
    "token|secret|secrets|password|passwords|passwd|passphrase|pwd|credential|credentials|auth|authorization|"
    "bearer|cookie|apikey|accesskey|secretkey|privatekey|authtoken"
)
KEYS = re.compile("api|access|secret|private|signing|encryption|ssh|account|service|master|auth")
"""Words before `key` that make it a secret."""

OF_TEXT = re.compile(
    "pad|padding|cls|sep|separator|mask|unk|unknown|bos|eos|special|image|video|audio|start|end|begin|stop|"
    "first|last|next|per|decoder|forced|word|new"
)
"""Words before `token` that make it a piece of text, as tokenizers have them."""

CHOSEN = ("callbacks", "eval.sets", "eval.extra_metrics")
"""Groups whose keys are names that somebody chose for a thing; they say nothing about the value."""

PLACEHOLDER = re.compile(r"<env:([A-Za-z_]\w*)>")
USER = re.compile(r"(?<=://)[^/\s@?#]+(?=@)")
"""The part of a URL that says who asks."""
PARAMETER = re.compile(r"(?<=[?&])([\w.-]+)=([^&#\s]+)")
HEADER = re.compile(r"(?i)(authorization:\s*(?:\w+\s+)?|\bbearer\s+(?=\S*\d))([^\s<'\"]{8,})")
"""What proves who asks, in a header of HTTP."""


def looks_secret(name: str) -> bool:
    """Whether a key or an environment variable is named like a secret."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    before, last = ["", "", *words][-2:]
    if last == "token":
        return not OF_TEXT.fullmatch(before)
    if last == "key":
        return bool(KEYS.fullmatch(before))
    return (
        bool(LAST.fullmatch(last))
        or (before, last) == ("connection", "string")
        or words[-3:] == ["access", "key", "id"]
    )


def mask_secrets(config: RunConfig) -> RunConfig:
    """Return the configuration with the name of its variable in the place of every secret.

    Raises:
        ConfigError: a secret that was typed.
    """
    return RunConfig.parse(_hidden(to_dict(config), "", False))


def resolve_secrets(value: Any) -> Any:
    """Return plain values with the secrets in the place of their variables' names.

    Raises:
        ConfigError: a variable that is not set here.
    """
    if isinstance(value, Mapping):
        return {key: resolve_secrets(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolve_secrets(inner) for inner in value]
    if not isinstance(value, str):
        return value
    for name in PLACEHOLDER.findall(value):
        if name not in os.environ:
            raise ConfigError(f"{name}: this variable, which the configuration names, is not set: export {name}=...")
    return PLACEHOLDER.sub(lambda match: os.environ[match[1]], value)


def named(value: Any) -> list[str]:
    """Return the variables that plain values name."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return list(dict.fromkeys(name for inner in value for name in named(inner)))
    return PLACEHOLDER.findall(value) if isinstance(value, str) else []


def check_secret_names(values: Any, path: str = "") -> None:
    """Refuse values that name a variable in the way that only files of this package do: those that a store brings
    along. What lies there could otherwise have a secret sent wherever it likes.

    Raises:
        ConfigError: with the key.
    """
    items = values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    for key, inner in items:
        check_secret_names(inner, _join(path, key))
    if isinstance(values, str) and (names := named(values)):
        raise ConfigError(
            f"{path}: wants the secret {names[0]} of a file that came from elsewhere; if that is right, say it in this "
            f"command: {path}='{PLACEHOLDER.sub(lambda match: f'${{oc.env:{match[1]}}}', values)}'"
        )


def masked(text: str) -> str:
    """Return words of a command line without what looks like a secret in them, to be shown."""
    text = HEADER.sub(r"\1<secret>", USER.sub("<secret>", text))
    shown, end = "", 0
    for key in re.finditer(r"([\w.-]+)['\"]?\s*[=:]\s*(?=[^\s,&}\]])", text):
        if key.start() >= end and looks_secret(key[1]):
            shown += f"{text[end : key.end()]}<secret>"
            end = key.end() + len(re.split(r"[\s,&}\]]", text[key.end() :], maxsplit=1)[0])
    return shown + text[end:]


def of_environment() -> dict[str, str]:
    """Return the secrets of the environment by name, the longest first; the path of a file that holds one is none."""

    def counts(name: str, value: str) -> bool:
        return bool(value) and looks_secret(name) and not (value[0] in "/~" and Path(value).expanduser().exists())

    found = {name: value for name, value in os.environ.items() if counts(name, value)}
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _hidden(value: Any, path: str, secret: bool) -> Any:
    if isinstance(value, Mapping):
        says = path not in CHOSEN
        return {
            key: inner
            if key == "_target_"
            else _hidden(inner, _join(path, key), secret or (says and looks_secret(str(key))))
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_hidden(inner, _join(path, i), secret) for i, inner in enumerate(value)]
    if isinstance(value, str):
        return _hidden_text(value, path, secret)
    numbers = isinstance(value, (int, float)) and not isinstance(value, bool)
    if secret and numbers and not path.endswith("token"):  # the number of a token of a vocabulary
        raise _typed(path)
    return value


def _hidden_text(text: str, path: str, secret: bool) -> str:
    def fill(part: str, shortest: int = 1) -> str:
        for name, value in of_environment().items():
            if len(value) >= shortest:
                pieces = re.split(f"({PLACEHOLDER.pattern.replace('(', '(?:')})", part)
                pieces[::2] = [piece.replace(value, f"<env:{name}>") for piece in pieces[::2]]
                part = "".join(pieces)
        return part

    def check(part: str) -> str:
        part = fill(part)
        if part and not named(part):
            raise _typed(path)
        return part

    def user(match: re.Match[str]) -> str:
        return check(match[0]) if ":" in match[0].strip(":") else fill(match[0])

    def parameter(match: re.Match[str]) -> str:
        last = match[1].rpartition("-")[2].lower()
        hides = looks_secret(match[1]) or last in ("signature", "sig")
        return f"{match[1]}={check(match[2])}" if hides else match[0]

    def header(match: re.Match[str]) -> str:
        return match[1] + check(match[2])

    if secret:
        return check(text)
    text = fill(text, SHORTEST)
    if "://" in text:
        text = PARAMETER.sub(parameter, USER.sub(user, text))
    return HEADER.sub(header, text)


def _typed(path: str) -> ConfigError:
    name = re.sub(r"\W+", "_", path.rpartition(".")[2]).strip("_").upper() or "MY"
    name = name if looks_secret(name) and not name[0].isdigit() else f"{name}_SECRET".lstrip("0123456789_")
    return ConfigError(
        f"{path}: holds a secret that was typed; put it into a variable (export {name}=...) and name that here, "
        f"'${{oc.env:{name}}}'"
    )


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
