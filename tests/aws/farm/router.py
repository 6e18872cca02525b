"""The farm's network: one bridge, which is every machine's router and has every address that machines may reach."""

import subprocess

from . import linux

BRIDGE = "farm0"

ROUTER = "172.31.0.1"
"""The farm's end of every machine's cable: AWS's API answers here."""

METADATA = "169.254.169.254"
OUTSIDE = ("8.8.8.8", "1.1.1.1")
"""Addresses that programs ask to learn whether there is a network at all, or which of their own addresses it uses."""


def start() -> None:
    """Make the bridge, in the caller's network namespace."""
    addresses = [f"{ROUTER}/16", "198.18.0.1/15", f"{METADATA}/32", *(f"{address}/32" for address in OUTSIDE)]
    lines = ["link set lo up", f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up"]
    _batch([*lines, *(f"addr add {address} dev {BRIDGE}" for address in addresses)])


def plug(cable: str, pid: int) -> None:
    """Lay a cable from the bridge to the network namespace of process `pid`, where it is called eth0."""
    linux.command("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", pid)
    linux.command("ip", "link", "set", cable, "master", BRIDGE, "up")


def switch(cable: str, on: bool) -> None:
    """Let a cable carry, or not."""
    linux.command("ip", "link", "set", cable, "up" if on else "down")


def set_up_machine(private: str, public: str | None) -> None:
    """Give eth0 of the caller's network namespace its addresses, and the way to what lies on the bridge beside them."""
    addresses = [f"addr add {private}/16 dev eth0", *([f"addr add {public}/15 dev eth0"] if public else [])]
    reached = [f"route add {address} dev eth0 src {private}" for address in (METADATA, *OUTSIDE)]
    _batch(["link set lo up", *addresses, "link set eth0 up", *reached])


def _batch(lines: list[str]) -> None:
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, stdout=2)
