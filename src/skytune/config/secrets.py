"""Secrets of a configuration: taken out before anything is written, put back where they are used.

A value counts as a secret if its key is named like one (`api_token`, `password`), if it stands in the environment under
such a name (`HF_TOKEN`), or if it is the user part or a signed parameter of a URL. In its place comes `<secret:key>`,
in the job file, in ZenML's store, in the report, in trackers and checkpoints. The value itself travels in the
environment of the processes alone (`SKYTUNE_SECRETS`): never in a file or on a command line.

Two values of one key leave the same text, so a secret decides neither a run key nor a cache.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .convert import from_dict, to_dict
from .errors import ConfigError
from .run import RunConfig

VARIABLE = "SKYTUNE_SECRETS"
"""Environment variable with the secrets that were taken out, as JSON by name of the placeholder."""

SHORTEST = 12
"""Shortest value of the environment that is looked for elsewhere: a shorter one may be an ordinary word."""

LAST = {
    "token",
    "secret",
    "secrets",
    "password",
    "passwords",
    "passwd",
    "passphrase",
    "pwd",
    "credential",
    "credentials",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "authtoken",
}
KEYS = {"api", "access", "secret", "private", "signing", "encryption", "ssh", "account", "service", "master", "auth"}
"""Words before `key` that make it a secret."""

OF_TEXT = {
    "pad",
    "padding",
    "cls",
    "sep",
    "separator",
    "mask",
    "unk",
    "unknown",
    "bos",
    "eos",
    "special",
    "image",
    "video",
    "audio",
    "start",
    "end",
    "begin",
    "stop",
    "first",
    "last",
    "next",
    "per",
    "decoder",
    "forced",
    "word",
    "new",
}
"""Words before `token` that make it a piece of text, as tokenizers have them."""

CHOSEN = ("callbacks", "eval.sets", "eval.extra_metrics")
"""Groups whose keys are names that somebody chose for a thing; they say nothing about the value."""

PLACEHOLDER = re.compile(r"<secret:([^<>]+)>")
USER = re.compile(r"(?<=://)[^/\s@?#]+(?=@)")
"""The part of a URL that says who asks."""
PARAMETER = re.compile(r"(?<=[?&])([\w.-]+)=([^&#\s]+)")


def looks_secret(name: str) -> bool:
    """Whether a key or an environment variable is named like a secret."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    before, last = ["", "", *words][-2:]
    if last == "token":
        return before not in OF_TEXT
    if last == "key":
        return before in KEYS
    return last in LAST or (before, last) == ("connection", "string") or words[-3:] == ["access", "key", "id"]


def hide(config: RunConfig) -> RunConfig:
    """Return the configuration with a placeholder for every secret; `reveal` knows the values from now on.

    Processes that this one starts know them too. A configuration without secrets comes back as it is.
    """
    taken = _Taken(to_dict(config))
    if not taken.values:
        return config
    os.environ[VARIABLE] = json.dumps({**vault(), **taken.values})
    return from_dict(RunConfig, taken.clean)


def redact(values: Any) -> Any:
    """Return plain values (dicts, lists, scalars) with a placeholder for every secret; the secrets are forgotten."""
    return _Taken(values).clean


def reveal(value: Any) -> Any:
    """Return plain values with the secrets in the place of their placeholders.

    Raises:
        ConfigError: a secret that this process was not given.
    """
    known = vault()

    def look(name: str) -> Any:
        if name not in known:
            raise ConfigError(f"{name}: is a secret, which is written nowhere; give it again")
        return known[name]

    def put_back(item: Any) -> Any:
        if isinstance(item, Mapping):
            return {key: put_back(inner) for key, inner in item.items()}
        if isinstance(item, (list, tuple)):
            return [put_back(inner) for inner in item]
        if not isinstance(item, str):
            return item
        whole = PLACEHOLDER.fullmatch(item)
        return look(whole[1]) if whole else PLACEHOLDER.sub(lambda match: str(look(match[1])), item)

    return put_back(value)


def vault() -> dict[str, Any]:
    """Return the secrets that were taken out of a configuration, by name of their placeholder."""
    found = json.loads(os.environ.get(VARIABLE) or "{}")
    assert isinstance(found, dict), VARIABLE
    return found


def of_environment() -> set[str]:
    """Return the secrets of the environment; the path of a file that holds one is none."""

    def counts(name: str, value: str) -> bool:
        if name == VARIABLE or len(value) < SHORTEST or not looks_secret(name):
            return False
        return not (value[0] in "/~" and Path(value).expanduser().exists())

    return {value for name, value in os.environ.items() if counts(name, value)}


class _Taken:
    """Plain values without secrets (`clean`), and the secrets by name of their placeholder (`values`)."""

    def __init__(self, values: Any) -> None:
        self.values: dict[str, Any] = {}
        named = self._named(values, "", False)
        known = {value for value in self.values.values() if isinstance(value, str) and len(value) >= SHORTEST}
        longest_first = sorted(known | of_environment(), key=len, reverse=True)
        self.known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.clean = _each_text(named, "", self._inside)

    def _named(self, value: Any, path: str, secret: bool) -> Any:
        """Take out what lies under a key that is named like a secret."""
        if isinstance(value, Mapping):
            says = path not in CHOSEN
            return {
                key: inner
                if key == "_target_"
                else self._named(inner, _join(path, key), secret or (says and looks_secret(str(key))))
                for key, inner in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._named(inner, _join(path, i), secret) for i, inner in enumerate(value)]
        if not secret or value is None or isinstance(value, bool) or value == "":
            return value
        if isinstance(value, str):
            return value if PLACEHOLDER.fullmatch(value) else self._take(path, value)
        return value if path.endswith("token") else self._take(path, value)  # the number of a token of a vocabulary

    def _inside(self, text: str, path: str) -> str:
        """Take out parts of a text: those of a URL, and values that are secrets elsewhere."""

        def parameter(match: re.Match[str]) -> str:
            name = match[1].rpartition("-")[2].lower()
            secret = looks_secret(match[1]) or name in ("signature", "sig")
            return f"{match[1]}={self._take(path, match[2])}" if secret else match[0]

        def url(part: str) -> str:
            part = USER.sub(lambda match: match[0] if match[0] == "git" else self._take(path, match[0]), part)
            return _outside(part, lambda rest: PARAMETER.sub(parameter, rest))

        if "://" in text:
            text = _outside(text, url)
        known = self.known
        if known is not None:
            text = _outside(text, lambda part: known.sub(lambda match: self._take(path, match[0]), part))
        return text

    def _take(self, path: str, value: Any) -> str:
        name = wanted = re.sub(r"[<>\s]", "_", path) or "value"
        count = 1
        while name in self.values and self.values[name] != value:
            count += 1
            name = f"{wanted}:{count}"
        self.values[name] = value
        return f"<secret:{name}>"


def _outside(text: str, change: Callable[[str], str]) -> str:
    """Change what lies between the placeholders of a text."""
    parts = re.split(f"({PLACEHOLDER.pattern.replace('(', '(?:')})", text)
    return "".join(part if i % 2 else change(part) for i, part in enumerate(parts))


def _each_text(value: Any, path: str, change: Callable[[str, str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _each_text(inner, _join(path, key), change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_each_text(inner, _join(path, i), change) for i, inner in enumerate(value)]
    return change(value, path) if isinstance(value, str) else value


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)
