"""What a machine says of itself, so that those that train together are alike; and which of its networks it uses."""

import contextlib
import hashlib
import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import skytune

from ..training.versions import versions
from .gpus import count_gpus

ALIKE = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy")
"""Packages whose versions must be the same everywhere."""


def about() -> dict[str, Any]:
    """Return what other machines of a run must know of this one."""
    found = versions()
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "versions": {name: found[name] for name in ALIKE if name in found},
        "code": _code(),
        "gpus": count_gpus(),
    }


def differs(node: Mapping[str, Any], node_0: Mapping[str, Any]) -> str:
    """Return in which version a machine differs from node 0, by what both say of themselves; empty where in none."""
    found, wanted = _packages(node), _packages(node_0)
    for name in ("Python", *ALIKE):
        one, other = found.get(name, "none"), wanted.get(name, "none")
        if one.partition("+")[0] != other.partition("+")[0]:  # `2.13.0+cu126` is `2.13.0`
            return f"has {name} {one}, node 0 has {other}"
    return "has another version of skytune's code than node 0" if node.get("code") != node_0.get("code") else ""


def lacks(other: Mapping[str, Any], ours: Mapping[str, Any], *, device: str, chosen: bool, each: int) -> str:
    """Return what GPUs another machine lacks, or has too many of; empty where it fits.

    Args:
        device: what the processes here compute on.
        chosen: whether the configuration says so; else every machine takes the best that it has.
        each: processes of every machine.
    """
    count = other.get("gpus")
    gpus = count if isinstance(count, int) else 0
    if device == "cuda" and gpus < each:
        return f"has {gpus} GPUs, each machine needs {each}"
    if device == "cuda" and not chosen and gpus != ours["gpus"]:
        return f"has {gpus} GPUs, node 0 has {ours['gpus']} (launch.num_processes=N says how many are used in all)"
    if device != "cuda" and not chosen and gpus:
        return f"has {gpus} GPUs, node 0 has none (compute=cpu uses none anywhere)"
    return ""


def own_address(towards: str = "192.0.2.1") -> str:
    """Return the address by which another machine reaches this one: that of its way there (to the world, by an address
    of documentation's, if none is given), or of the loopback where there is none."""
    with socket.socket(socket.AF_INET6 if ":" in towards else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((towards, 9))  # nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def network(address: str) -> dict[str, str]:
    """Return the variables that keep gloo on the network of an address of this machine: by itself it takes the one that
    this machine's name stands for, which on many machines is the loopback, and on others every other one can reach."""
    import psutil

    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return {}
    with contextlib.suppress(OSError):
        address = socket.gethostbyname(address)
    for name, addresses in psutil.net_if_addrs().items():
        if address in {found.address.partition("%")[0] for found in addresses}:
            return {"GLOO_SOCKET_IFNAME": str(name)}
    return {}


def _packages(word: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions that a machine says it has; whatever else it wrote there counts as none."""
    versions = word.get("versions")
    found = {"Python": word.get("python"), **(versions if isinstance(versions, dict) else {})}
    return {name: version[:40] for name, version in found.items() if isinstance(version, str)}


def _code() -> str:
    digest, package = hashlib.sha256(), Path(skytune.__file__).resolve().parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
