"""Secrets leave a configuration before it is written, and come back where they are used."""

import json
import logging
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skytune.config import ConfigError, RunConfig, from_dict, to_dict
from skytune.config.scrubbing import guard_logs, scrub, scrubbed
from skytune.config.secrets import check_secret_names, looks_secret, mask_secrets, named, resolve_secrets
from skytune.config.targets import instantiate, split_spec

TOKEN = "hf_canaryCanary0123456789"


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test leaves secrets behind, or finds those of whoever runs it."""
    for name in [name for name in os.environ if looks_secret(name)]:
        monkeypatch.delenv(name)


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


def hidden(extra: dict[str, Any]) -> dict[str, Any]:
    return mask_secrets(from_dict(RunConfig, {"extra": extra})).extra


def test_what_is_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("SHORT_TOKEN", "positive")  # an ordinary word, which a label may be
    monkeypatch.setenv("DB_PASSWORD", "me:tiger")
    values = {
        "api_token": "positive",
        "note": f"use {TOKEN}, then {TOKEN}",
        "labels": ["positive", "negative"],
        "credentials": {"user": "positive", "on": True, "none": None},
        "pad_token": "[PAD]",
        "token": 7,
        "train": "https://me:tiger@host/a.csv?X-Amz-Signature=positive&page=2&token=" + TOKEN,
        "header": "Authorization: Bearer " + TOKEN,
        "git": "ssh://git@host/x",
        "callbacks": {"auth": {"_target_": "a.B", "password": "positive"}},
    }
    found = hidden(values)
    assert found == {
        "api_token": "<env:SHORT_TOKEN>",
        "note": "use <env:HF_TOKEN>, then <env:HF_TOKEN>",
        "labels": ["positive", "negative"],
        "credentials": {"user": "<env:SHORT_TOKEN>", "on": True, "none": None},
        "pad_token": "[PAD]",
        "token": 7,
        "train": "https://<env:DB_PASSWORD>@host/a.csv?X-Amz-Signature=<env:SHORT_TOKEN>&page=2&token=<env:HF_TOKEN>",
        "header": "Authorization: Bearer <env:HF_TOKEN>",
        "git": "ssh://git@host/x",
        "callbacks": {"auth": {"_target_": "a.B", "password": "<env:SHORT_TOKEN>"}},
    }
    assert resolve_secrets(found) == values and set(named(found)) == {"HF_TOKEN", "SHORT_TOKEN", "DB_PASSWORD"}


@pytest.mark.parametrize(
    ("extra", "key", "name"),
    [
        ({"api_token": "x1"}, "api_token", "API_TOKEN"),
        ({"credentials": {"pin": 1234}}, "credentials.pin", "PIN_SECRET"),
        ({"passwords": ["a", "b"]}, "passwords.0", "SECRET"),
        ({"url": "https://me:w0rd@host/x"}, "url", "URL_SECRET"),
        ({"url": "s3://b/x?X-Amz-Signature=abc"}, "url", "URL_SECRET"),
        ({"header": "Authorization: Bearer abcdefgh"}, "header", "HEADER_SECRET"),
        ({"header": "authorization: Basic dTpwYXNz"}, "header", "HEADER_SECRET"),
        ({"note": "with Bearer abc123def456"}, "note", "NOTE_SECRET"),
    ],
)
def test_one_that_was_typed_is_refused_with_a_way_out_that_works(
    extra: dict[str, Any], key: str, name: str, monkeypatch: pytest.MonkeyPatch, compose: Callable[..., RunConfig]
) -> None:
    with pytest.raises(ConfigError, match=rf"^extra\.{key}: .*export {name}=.*\$.oc.env:{name}.'$") as caught:
        hidden(extra)
    assert all(word not in str(caught.value) for word in ("x1", "1234", "w0rd", "abc", "dTpw"))
    monkeypatch.setenv(name, "the-value")
    assert compose(f"+extra.a_token='${{oc.env:{name}}}'").extra == {"a_token": f"<env:{name}>"}


def test_ordinary_words_are_none() -> None:
    words = {"note": "a basic classifier, the bearer of good news", "url": "https://me@host/a?page=2", "size": 3}
    assert hidden(words) == words


def test_named_in_a_command_and_known_where_it_is_used(
    compose: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    words = ["+extra.api_token='${oc.env:MY_TOKEN}'"]
    config = compose(*words, "+callbacks.mine={_target_: builtins.dict, password: '${oc.env:MY_TOKEN}', size: 2}")
    text = json.dumps(to_dict(config))
    assert TOKEN not in text
    assert mask_secrets(config) == config
    assert resolve_secrets(config.extra) == {"api_token": TOKEN}
    assert split_spec(config.callbacks["mine"]) == ("builtins.dict", {"password": TOKEN, "size": 2})
    assert instantiate("builtins.dict", {"key": config.extra["api_token"]}) == {"key": TOKEN}
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(ConfigError, match=r"MY_TOKEN: this variable, .* is not set: export MY_TOKEN="):
        resolve_secrets(config.extra)


def test_a_file_from_elsewhere_gets_none(compose: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store brings along could otherwise have a secret sent wherever it likes."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(ConfigError, match=r"extra\.to: wants the secret HF_TOKEN of .*extra\.to='http://evil/\$"):
        check_secret_names({"extra": {"to": "http://evil/<env:HF_TOKEN>"}})
    with pytest.raises(ConfigError, match="wants the secret HF_TOKEN"):
        compose("+extra.to='http://evil/<env:HF_TOKEN>'")


def test_a_secret_decides_no_run_key(monkeypatch: pytest.MonkeyPatch) -> None:
    from skytune.launch.run_dir import run_key

    keys = set()
    for token in ("one", "two"):
        monkeypatch.setenv("MY_TOKEN", token)
        keys.add(run_key(mask_secrets(from_dict(RunConfig, {"extra": {"api_token": token}})), {}))
    assert len(keys) == 1


def test_the_command_shows_none(command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    for word in ("--cfg", "--help"):
        done = command("+extra.api_token='${oc.env:MY_TOKEN}'", word)
        assert done.returncode == 0, done.stderr
        assert TOKEN not in done.stdout + done.stderr and "<env:MY_TOKEN>" in done.stdout
    monkeypatch.delenv("MY_TOKEN")
    done = command(f"+extra.api_token={TOKEN}")
    assert done.returncode == 1 and TOKEN not in done.stdout + done.stderr


def test_messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", TOKEN)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path))  # where it lies is no secret
    monkeypatch.setenv("MY_PASSWORD", "tiger7")
    text = f"{TOKEN} tiger7 s3://user:pass@host https://me@host {tmp_path}"
    assert scrub(text) == f"<secret> <secret> s3://<secret>@host https://me@host {tmp_path}"
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
    st.sampled_from(["https://u:p@h/x", "s3://k@b/y?sig=1&z=2", TOKEN, f"a {TOKEN} b", "<env:x", "Bearer 12345678"]),
)
plain = st.one_of(st.none(), st.booleans(), st.integers(), texts)
names = st.sampled_from(["api_token", "password", "lr", "credentials", "note", "pad_token", "a b", "<x>"])
nested = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(extra=st.dictionaries(names, nested, max_size=4))
def test_hidden_and_revealed_gives_the_same_or_is_refused(
    extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    try:
        config = mask_secrets(from_dict(RunConfig, {"extra": extra}))
    except ConfigError as error:
        assert "was typed" in str(error) and TOKEN not in str(error)
        return
    assert resolve_secrets(config.extra) == extra
    assert TOKEN not in json.dumps(to_dict(config))
    assert mask_secrets(config) == config


@pytest.mark.parametrize(
    "word",
    [
        "+extra.api_token=canary-42,b",
        "+extra.api_token='canary-42",
        "+extra.header='Authorization: Bearer canary-4242",
        "+extra.header='Authorization: Bearer canary-4242'",
        "+callbacks.x={_target_: a.B, password: canary-42",
        "seed=s3://me:canary-42@host/x y=z",
        "+seed=1,{token: canary-42}",
        "seed={password: canary-42}",
        "model.name={a: {api_token: canary-42}}",
        "plugins={api_token: canary-42}",
        "seed=s3://me:canary-42@host/x",
        "optimizer.lr='Authorization: Bearer canary-4242'",
        "optimizer.betas={token: canary-42}",
        "data.label_map='api_token=canary-42'",
    ],
)
def test_a_word_that_is_refused_is_shown_without_its_secret(word: str) -> None:
    from skytune.config.compose import compose_run

    with pytest.raises(ConfigError) as refused:
        compose_run(Path(__file__).resolve().parents[2] / "configs", [word])
    assert "canary" not in str(refused.value)
