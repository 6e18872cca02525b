"""Secrets leave a configuration before it is written, and come back where they are used."""

import json
import logging
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skytune.config import ConfigError, RunConfig, from_dict, to_dict
from skytune.config.scrubbing import guard_logs, scrub, scrubbed
from skytune.config.secrets import VARIABLE, hide, looks_secret, redact, reveal
from skytune.config.targets import instantiate, split_spec

TOKEN = "hf_canaryCanary0123456789"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves secrets behind, or finds those of whoever runs it."""
    monkeypatch.setenv(VARIABLE, "")
    for name in ("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    "name",
    [
        "api_token",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "apiKey",
        "HFToken",
        "db-password",
        "client_secret",
        "auth",
        "token",
        "token2",
        "connectionString",
        "credentials",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer",
        "pad_token",
        "mask_token",
        "max_tokens",
        "tokens_per_s",
        "key",
        "keys",
        "cache_key",
        "author",
        "name",
        "SSH_AUTH_SOCK",
        "secretary",
        "image_token",
        "monkey",
        "",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not looks_secret(name)


def test_no_key_of_the_configuration_is_taken_for_a_secret() -> None:
    def names(cls: Any) -> list[str]:
        found = []
        for field in fields(cls):
            found.append(field.name)
            made = field.default_factory() if callable(field.default_factory) else None
            found += names(type(made)) if is_dataclass(made) else []
        return found

    assert [name for name in names(RunConfig) if looks_secret(name)] == []


def test_what_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("SHORT_TOKEN", "positive")  # an ordinary word, which a label may be
    values = {
        "extra": {
            "api_token": "x1",
            "note": f"use {TOKEN}, then {TOKEN}",
            "labels": ["positive", "negative"],
            "credentials": {"user": "me", "pin": 1234, "on": True, "none": None},
            "pad_token": "[PAD]",
            "token": 7,
        },
        "data": {"train": "https://me:secret-word@host/a.csv?X-Amz-Signature=abc&page=2&token=t9"},
        "git": "ssh://git@host/x",
        "callbacks": {"auth": {"_target_": "a.B", "password": "p"}},
    }
    assert redact(values) == {
        "extra": {
            "api_token": "<secret:extra.api_token>",
            "note": "use <secret:extra.note>, then <secret:extra.note>",
            "labels": ["positive", "negative"],
            "credentials": {
                "user": "<secret:extra.credentials.user>",
                "pin": "<secret:extra.credentials.pin>",
                "on": True,
                "none": None,
            },
            "pad_token": "[PAD]",
            "token": 7,
        },
        "data": {
            "train": "https://<secret:data.train>@host/a.csv?X-Amz-Signature=<secret:data.train:2>&page=2"
            "&token=<secret:data.train:3>"
        },
        "git": "ssh://git@host/x",
        "callbacks": {"auth": {"_target_": "a.B", "password": "<secret:callbacks.auth.password>"}},
    }


def test_a_configuration_without_secrets_stays_as_it_is() -> None:
    config = RunConfig()
    assert hide(config) is config


def test_hidden_in_a_command_and_known_where_it_is_used(compose: Callable[..., RunConfig]) -> None:
    config = compose(f"+extra.api_token={TOKEN}", "+callbacks.mine={_target_: builtins.dict, password: pw, size: 2}")
    text = json.dumps(to_dict(config))
    assert TOKEN not in text and "pw" not in config.callbacks["mine"].values()
    assert hide(config) is config or to_dict(hide(config)) == to_dict(config)
    assert reveal(config.extra) == {"api_token": TOKEN}
    assert split_spec(config.callbacks["mine"]) == ("builtins.dict", {"password": "pw", "size": 2})
    assert instantiate("builtins.dict", {"key": config.extra["api_token"]}) == {"key": TOKEN}
    again = from_dict(RunConfig, json.loads(text))
    assert reveal(again.extra) == {"api_token": TOKEN}


def test_a_secret_that_was_not_handed_over_is_asked_for() -> None:
    with pytest.raises(ConfigError, match=r"extra\.api_token: is a secret, which is written nowhere; give it again"):
        reveal({"a": ["<secret:extra.api_token>"]})


def test_a_secret_decides_no_run_key() -> None:
    from skytune.launch.runs import run_key

    keys = {run_key(hide(from_dict(RunConfig, {"extra": {"api_token": token}})), {}) for token in ("one", "two")}
    assert len(keys) == 1


def test_the_command_shows_none(command: Callable[..., Any]) -> None:
    for word in ("--cfg", "--help"):
        done = command(f"+extra.api_token={TOKEN}", word)
        assert done.returncode == 0, done.stderr
        assert TOKEN not in done.stdout + done.stderr and "<secret:extra.api_token>" in done.stdout


def test_messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", TOKEN)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))  # where it lies is no secret
    hide(from_dict(RunConfig, {"extra": {"password": "tiger7"}}))
    said = f"{TOKEN} tiger7 s3://user:pass@host https://me@host {tmp_path}"
    assert scrub(said) == f"<secret> <secret> s3://<secret>@host https://me@host {tmp_path}"
    with pytest.raises(OSError) as raised, scrubbed():
        try:
            raise ValueError(f"no {TOKEN}")
        except ValueError as error:
            raise OSError(f"denied: {TOKEN}") from error
    assert str(raised.value) == "denied: <secret>" and str(raised.value.__cause__) == "no <secret>"


def test_logs_of_any_library(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    factory = logging.getLogRecordFactory()
    try:
        guard_logs()
        guarded = logging.getLogRecordFactory()
        guard_logs()
        assert logging.getLogRecordFactory() is guarded
        with caplog.at_level(logging.INFO):
            logging.getLogger("somebody.else").info("GET %s with %r, %d times", "https://a:b@c/d", TOKEN, 3)
            logging.getLogger("somebody.else").info("as it is: %s", 1)
    finally:
        logging.setLogRecordFactory(factory)
    assert caplog.messages == ["GET https://<secret>@c/d with '<secret>', 3 times", "as it is: 1"]


texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["https://u:p@h/x", "s3://k@b/y?sig=1&z=2", TOKEN, f"a {TOKEN} b", "<secret:x"]),
)
plain = st.one_of(st.none(), st.booleans(), st.integers(), texts)
names = st.sampled_from(["api_token", "password", "lr", "credentials", "note", "pad_token", "a b", "<x>"])
nested = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extra=st.dictionaries(names, nested, max_size=4))
def test_hidden_and_revealed_gives_the_same(extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv(VARIABLE, "")
    hidden = hide(from_dict(RunConfig, {"extra": extra}))
    assert reveal(hidden.extra) == extra
    assert TOKEN not in json.dumps(to_dict(hidden))
    assert redact(to_dict(hidden)) == to_dict(hidden)
