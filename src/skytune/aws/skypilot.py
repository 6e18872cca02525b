"""SkyPilot as a stack needs it: which role its machines get, and whether its client and its server fit together.

Unless told of a role, SkyPilot copies the user's own AWS keys to every machine. `use_role` tells it, through SkyPilot's
own configuration: one file a stack, named by the environment variable that SkyPilot reads.
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from ..checkpoint.backends.s3 import OWNER
from ..common.files import replacing
from ..common.findings import Finding, Level
from ..config import UserError
from ..config.folders import home
from ..config.installing import add_extra

VARIABLE = "SKYPILOT_PROJECT_CONFIG"
"""Where SkyPilot looks for the configuration of a project, on top of the user's own."""

OF_THE_USER = ".sky.yaml"
"""Where it looks without the variable: in the folder from which a command is started."""

INTERNAL = "SKYPILOT_CONFIG"
"""Where SkyPilot looks for a configuration that replaces all others."""

KEYS = "LOCAL_CREDENTIALS"
"""SkyPilot's word for an identity that is the user's own keys."""

BUCKET, ACCOUNT, ROLE_LABEL = "skytune.bucket", "skytune.account", "skytune.role"
"""Labels of a ZenML stack; the role is the instance profile of its machines."""

SERVER = "http://127.0.0.1:46580"
SERVER_SECONDS = 2.0
RESTART = "`sky api stop && sky api start` (running jobs go on)"


def configuration(stack: str) -> Path:
    """Return where the SkyPilot configuration of a stack lies."""
    return home() / "stacks" / f"{stack}.sky.yaml"


def use_role(stack: str, labels: Mapping[str, Any] | None) -> None:
    """Have SkyPilot give the stack's role to the machines that this process and its children bring up, and the store
    expect the stack's bucket to be the account's.

    Raises:
        UserError: the user has a configuration of SkyPilot's for this folder (which then stays in force) that gives
            machines no role: they would be given the user's own keys.
    """
    known = labels or {}
    if known.get(BUCKET) and known.get(ACCOUNT):
        os.environ[OWNER] = f"{known[BUCKET]}={known[ACCOUNT]}"
    role = known.get(ROLE_LABEL)
    if not role:
        return
    other = os.environ.get(INTERNAL) or os.environ.get(VARIABLE) or (Path(OF_THE_USER).exists() and OF_THE_USER)
    if other:
        if _identity(Path(other).expanduser()) in (None, KEYS):
            raise UserError(
                f"{other}: this configuration of SkyPilot's would have your own AWS keys copied to every machine of "
                f"stack {stack}: put `aws: {{remote_identity: {role}}}` into it"
            )
        return
    file, text = configuration(stack), yaml.safe_dump({"aws": {"remote_identity": str(role)}})
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        with replacing(file, str(os.getpid())) as part:
            part.write_text(text, encoding="utf-8")
    os.environ[VARIABLE] = str(file)


def _identity(file: Path) -> str | None:
    """Return what a configuration of SkyPilot's gives to all machines on AWS; None where it does not say."""
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))["aws"]["remote_identity"]
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError):
        return None
    return found if isinstance(found, str) else None  # a list, by the clusters' names, may leave some without


def versions() -> Finding:
    """Compare the versions of SkyPilot's client and of its API server; one that does not run is started by a run."""
    try:
        client = metadata.version("skypilot")
    except metadata.PackageNotFoundError:
        return Finding(Level.fail, "skypilot", "not installed", add_extra("aws"))
    address = server()
    local = address == SERVER
    try:
        health = _health(address)
    except urllib.error.HTTPError as error:
        text = f"client {client}; {address} answers with HTTP {error.code}"
        way = "`sky api login` (its token may have expired)" if error.code in (401, 403) else RESTART
        return Finding(Level.fail, "skypilot", text, way)
    except (OSError, ValueError) as error:
        if local:
            return Finding(Level.ok, "skypilot", f"{client}; no API server runs: the first run starts one")
        return Finding(
            Level.fail, "skypilot", f"client {client}; {address} does not answer ({error})", "`sky api info`"
        )
    running = str(health.get("version"))
    if health.get("status") != "healthy":
        status = health.get("status")
        return Finding(Level.fail, "skypilot", f"client {client}; the API server {running} is {status}", RESTART)
    if running != client:
        way = RESTART if local else f"pip install 'skypilot[aws]=={running}', or update the server"
        return Finding(Level.fail, "skypilot", f"client {client}, API server {running} ({address})", way)
    return Finding(Level.ok, "skypilot", f"client and API server {client}")


def server() -> str:
    """Return the address of SkyPilot's API server, as SkyPilot finds it."""
    if os.environ.get("SKYPILOT_API_SERVER_ENDPOINT"):
        return os.environ["SKYPILOT_API_SERVER_ENDPOINT"].rstrip("/")
    file = Path(os.environ.get("SKYPILOT_GLOBAL_CONFIG") or "~/.sky/config.yaml").expanduser()
    try:
        settings = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        return str(settings["api_server"]["endpoint"]).rstrip("/")
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        return SERVER


def _health(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address}/api/health", timeout=SERVER_SECONDS) as answer:
        found = json.load(answer)
    if not isinstance(found, dict):
        raise ValueError("no SkyPilot API server")
    return found
