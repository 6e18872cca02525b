"""The farm for a person: rehearse AWS on a Linux machine, as root, without an account and without a bill.

python -m farm shell            start it if it does not run, and give a shell in which AWS is the farm
python -m farm run WORDS...     run one command in it
python -m farm status           what runs, where, since when, for how much an hour
python -m farm preempt ID [S]   take a spot machine away, S seconds after a notice (default 120; 0: at once)
python -m farm lose|find ID     cut a machine's network, or mend it
python -m farm log ID           what a machine wrote, gone ones too
python -m farm up|down          start it, end it with all that runs in it
python -m farm pins             resolve anew what SkyPilot's runtime holds, and rewrite image.txt
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from . import catalog
from .bake import PINS
from .control import FarmError
from .farm import Farm
from .programs import Unavailable, runtime_python

NAME = "rehearsal"

_WELCOME = """\
In this shell AWS is the farm: aws, boto3, SkyPilot and skytune's own commands reach it and nothing else. Machines are
namespaces of this computer, without GPUs and with no network but each other. HOME is the account user's.
  aws s3 ls;  sky launch --infra aws --instance-type m5.large -- hostname
In another terminal, as root: make farm ARGS=status (or "preempt ID", "log ID", ...).
`exit` leaves the shell; make farm ARGS=down ends the farm with all that runs in it.
"""


def main(words: list[str]) -> int:
    """Do what the words say; return the exit code. A refusal is one line on standard error."""
    parser = argparse.ArgumentParser(prog="farm", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in ("shell", "up", "down", "status", "pins"):
        commands.add_parser(name)
    commands.add_parser("run").add_argument("words", nargs=argparse.REMAINDER)
    for name in ("lose", "find", "log"):
        commands.add_parser(name).add_argument("instance")
    preempt = commands.add_parser("preempt")
    preempt.add_argument("instance")
    preempt.add_argument("seconds", nargs="?", type=float, default=120)
    asked = parser.parse_args(words)
    try:
        return _do(asked)
    except (FarmError, Unavailable) as error:
        print(f"farm: {error}", file=sys.stderr)
        return 1


def _do(asked: argparse.Namespace) -> int:
    if asked.command == "pins":
        return _renew_pins()
    if asked.command in ("shell", "up", "run"):
        farm = _up()
        if asked.command == "run":
            return farm.popen(asked.words).wait()
        print(_WELCOME if asked.command == "shell" else f"the farm runs; python -m farm shell\n{farm.folder}")
        return farm.shell() if asked.command == "shell" else 0
    farm = Farm.attach(NAME)
    if asked.command == "status":
        print(status(farm))
    elif asked.command == "down":
        farm.down()
    elif asked.command == "log":
        print(farm.log(asked.instance))
    elif asked.command == "preempt":
        farm.preempt(asked.instance, asked.seconds)
    elif asked.command in ("lose", "find"):
        getattr(farm, asked.command)(asked.instance)
    return 0


def _up() -> Farm:
    try:
        return Farm.attach(NAME)
    except FarmError:
        return Farm.up(NAME)


def status(farm: Farm) -> str:
    """Return a table of what runs and what it would cost."""
    rows = [["ID", "CLUSTER", "TYPE", "ZONE", "MARKET", "STATE", "MACHINE", "ADDRESS", "SINCE", "$/HOUR"]]
    total = 0.0
    for each in farm.instances():
        known = each.type in catalog.TYPES and each.zone in catalog.SPOT_MARKUP
        price = catalog.price(each.type, each.zone, each.spot) if known else 0.0
        total += price
        state = "cut off" if each.lost else each.state
        market = "spot" if each.spot else "on-demand"
        where = each.public_ip or each.private_ip
        rows.append([each.id, each.cluster or "-", each.type, each.zone, market, state, each.machine, where])
        rows[-1] += [each.launch_time[:19], f"{price:.3f}"]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    failures = [f"the farm itself failed: {text}" for text in farm.failures()]
    return "\n".join([*lines, f"{len(rows) - 1} running, ${total:.3f} an hour on the real AWS", *failures])


def _renew_pins() -> int:
    """Resolve the requirements that image.txt names in its head, and write what came out."""
    text = PINS.read_text().splitlines()
    head = [line for line in text if line.startswith("#")]
    wanted = head[1].removeprefix("#").replace('"', "").split()
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "pip", "--python", runtime_python(), "wheel", "--wheel-dir", folder, *wanted]
        subprocess.run(words, check=True)
        wheels = sorted(path.name.split("-")[:2] for path in Path(folder).glob("*.whl"))
    half = PINS.with_suffix(".half")
    half.write_text("\n".join([*head, *(f"{name.replace('_', '-')}=={version}" for name, version in wheels)]) + "\n")
    os.replace(half, PINS)
    return 0
