"""What SkyPilot is told of a stack, and whether its client and server fit together."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from skytune.aws import skypilot
from skytune.common.findings import Level
from skytune.config import UserError

ROLE = "skytune-aws-us-east-1"
VERSION = metadata.version("skypilot")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (
        "SKYTUNE_BUCKET_OWNER",
        "SKYPILOT_CONFIG",
        "SKYPILOT_PROJECT_CONFIG",
        "SKYPILOT_GLOBAL_CONFIG",
        "SKYPILOT_API_SERVER_ENDPOINT",
    ):
        monkeypatch.setenv(name, "")  # so that it is put back, whatever the code under test sets
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_the_role_is_written_once(tmp_path: Path) -> None:
    skypilot.use_role("aws", {skypilot.ROLE_LABEL: ROLE})
    file = Path(os.environ["SKYPILOT_PROJECT_CONFIG"])
    assert file == skypilot.configuration("aws")
    assert yaml.safe_load(file.read_text())["aws"] == {"remote_identity": ROLE}
    before = file.stat().st_mtime_ns
    del os.environ["SKYPILOT_PROJECT_CONFIG"]
    skypilot.use_role("aws", {skypilot.ROLE_LABEL: ROLE})
    assert file.stat().st_mtime_ns == before
    assert [each.name for each in file.parent.iterdir()] == ["aws.sky.yaml"]


@pytest.mark.parametrize("labels", [None, {}, {"skytune.region": "us-east-1"}], ids=["none", "empty", "others"])
def test_a_stack_without_a_role_changes_nothing(labels: dict[str, str] | None) -> None:
    skypilot.use_role("default", labels)
    assert "SKYPILOT_PROJECT_CONFIG" not in os.environ


TEXTS = ["{}", "aws: {remote_identity: LOCAL_CREDENTIALS}", "aws: {remote_identity: [{'a*': role}]}", "[1", "3"]
PLACES = ["SKYPILOT_PROJECT_CONFIG", "SKYPILOT_CONFIG", None]


@pytest.mark.parametrize(("where", "text"), [*product(PLACES, TEXTS), *((place, None) for place in PLACES[:2])])
def test_a_configuration_that_hands_out_the_users_keys_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str | None, text: str | None
) -> None:
    file = tmp_path / ("theirs.yaml" if where else ".sky.yaml")
    if where:
        monkeypatch.setenv(where, str(file))
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match=r"your own AWS keys copied to every machine of stack aws: put `aws:") as caught:
        skypilot.use_role("aws", {skypilot.ROLE_LABEL: ROLE})
    skypilot.use_role("default", {})  # without a stack's role it is the user's own affair
    file.write_text(str(caught.value).split("`")[1])
    skypilot.use_role("aws", {skypilot.ROLE_LABEL: ROLE})
    assert os.environ.get("SKYPILOT_PROJECT_CONFIG") == (str(file) if where == "SKYPILOT_PROJECT_CONFIG" else None)


def test_the_store_knows_whose_the_bucket_is() -> None:
    skypilot.use_role("aws", {skypilot.BUCKET: "skytune-aws-1", skypilot.ACCOUNT: "123456789012"})
    assert os.environ["SKYTUNE_BUCKET_OWNER"] == "skytune-aws-1=123456789012"


def test_the_real_skypilot_takes_the_role_and_copies_no_keys(tmp_path: Path) -> None:
    """Its own code decides which identity a machine gets; with any but LOCAL_CREDENTIALS it copies none."""
    skypilot.use_role("aws", {skypilot.ROLE_LABEL: ROLE})
    code = (
        "from sky import skypilot_config as c; from sky.skylet import constants as k; import json; keys=('aws',); "
        "role = c.get_effective_region_config(cloud='aws', region='us-east-1', keys=('remote_identity',), "
        "default_value=None); print(json.dumps([role, [list(x) for x in k.SKIPPED_CLIENT_OVERRIDE_KEYS]]))"
    )
    env = {**os.environ, "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=900, check=True)
    role, dropped = json.loads(run.stdout.strip().splitlines()[-1])
    assert role == ROLE
    assert not [keys for keys in dropped if keys[0] == "aws"]  # it is sent to the API server, too


@pytest.fixture
def server() -> Iterator[Callable[[int, Any], str]]:
    """Return a starter of servers that answer as SkyPilot's API server does when it is asked for its health."""
    started: list[HTTPServer] = []

    def start(status: int, answer: Any) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status if self.path == "/api/health" else 404)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *words: Any) -> None:
                pass

        started.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=started[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{started[-1].server_address[1]}"

    yield start
    for each in started:
        each.shutdown()
        each.server_close()


def healthy(version: str) -> dict[str, str]:
    return {"status": "healthy", "version": version, "api_version": "1"}


def test_client_and_server_of_one_version(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", server(200, healthy(VERSION)))
    found = skypilot.versions()
    assert (found.level, found.text) == (Level.ok, f"client and API server {VERSION}")


def test_another_version_on_this_machine_is_restarted(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    address = server(200, healthy("0.9.3"))
    monkeypatch.setattr(skypilot, "SERVER", address)
    found = skypilot.versions()
    assert found.level is Level.fail
    assert found.text == f"client {VERSION}, API server 0.9.3 ({address})"
    assert found.way_out.startswith("`sky api stop && sky api start`")


def test_another_version_elsewhere_is_not(server: Any, tmp_path: Path) -> None:
    (tmp_path / ".sky").mkdir()
    address = server(200, healthy("0.9.3"))
    (tmp_path / ".sky" / "config.yaml").write_text(f"api_server:\n  endpoint: {address}/\n")
    found = skypilot.versions()
    assert found.level is Level.fail and address in found.text
    assert found.way_out == "pip install 'skypilot[aws]==0.9.3', or update the server"


def test_no_server_is_no_fault_here_and_one_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        monkeypatch.setattr(skypilot, "SERVER", address)
        assert skypilot.versions().text == f"{VERSION}; no API server runs: the first run starts one"
        monkeypatch.setattr(skypilot, "SERVER", "http://127.0.0.1:46580")
        monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", address)
        assert skypilot.versions().level is Level.fail


@pytest.mark.parametrize(("status", "way"), [(401, "sky api login"), (500, "sky api stop")], ids=["login", "fault"])
def test_a_server_that_refuses(server: Any, monkeypatch: pytest.MonkeyPatch, status: int, way: str) -> None:
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", server(status, {}))
    found = skypilot.versions()
    assert found.level is Level.fail and f"HTTP {status}" in found.text and way in found.way_out


def test_something_else_on_the_port(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", server(200, [1, 2]))
    assert "no SkyPilot API server" in skypilot.versions().text
