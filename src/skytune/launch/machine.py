"""What a machine says of itself, so that those that train together are alike; and which of its networks it uses."""

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
        "name": socket.gethostname(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        "versions": {name: found[name] for name in ALIKE if name in found},
        "code": _code(),
        "gpus": count_gpus(),
    }


def differs(theirs: Mapping[str, Any], ours: Mapping[str, Any], *, device: str, chosen: bool, each: int) -> str:
    """Return in what another machine does not fit this one; empty where it does.

    Args:
        device: what the processes here compute on.
        chosen: whether the configuration says so; else every machine takes the best that it has.
        each: processes of every machine.
    """
    if theirs.get("python") != ours["python"]:
        return f"has Python {theirs.get('python')}, node 0 has {ours['python']}"
    others = theirs.get("versions") or {}
    for name, version in ours["versions"].items():
        if _public(others.get(name, "none")) != _public(version):
            return f"has {name} {others.get(name, 'none')}, node 0 has {version}"
    if theirs.get("code") != ours["code"]:
        return "has another version of skytune's code than node 0"
    gpus = int(theirs.get("gpus") or 0)
    if device == "cuda" and gpus < each:
        return f"has {gpus} GPUs, each machine needs {each}"
    if device == "cuda" and not chosen and gpus != ours["gpus"]:
        return f"has {gpus} GPUs, node 0 has {ours['gpus']} (launch.num_processes=N says how many are used in all)"
    if device != "cuda" and not chosen and gpus:
        return f"has {gpus} GPUs, node 0 has none (compute=cpu uses none anywhere)"
    return ""


def own_address() -> str:
    """Return the address by which other machines reach this one: that of its way to the world, or of the loopback where
    it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent; the address is one of documentation's
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def interface(address: str) -> str | None:
    """Return the name of the network interface that has an address; None if none has."""
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if address in {found.address.partition("%")[0] for found in addresses}:
            return str(name)
    return None


def network(address: str) -> dict[str, str]:
    """Return the variables that keep gloo on the network of an address: by itself it takes the one that this machine's
    name stands for, which on many machines is the loopback."""
    name = None if os.environ.get("GLOO_SOCKET_IFNAME") else interface(address)
    return {"GLOO_SOCKET_IFNAME": name} if name else {}


def _public(version: str) -> str:
    """Return a version without its build: `2.13.0+cu126` is `2.13.0`."""
    return version.partition("+")[0]


def _code() -> str:
    digest, package = hashlib.sha256(), Path(skytune.__file__).resolve().parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
