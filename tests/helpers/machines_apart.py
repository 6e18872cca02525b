"""Machines apart, on one: network namespaces with a cable between them (virtual Ethernet), each with its own view of
the file system where that is wanted. Needs root and iproute2 (`missing` says what is not there).

    python apart.py JOBDIR        node 0 of a job that is laid out: what the launch room does, without the pipeline
    python apart.py CONFIG        another machine, with this configuration (JSON); an engine's variables say which
"""

import itertools
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = itertools.count()

BUCKET = """
import sys, time
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="10.77.0.1", port=5000, verbose=False)
server.start()
import boto3
boto3.resource("s3").create_bucket(Bucket="share")
print("open", flush=True)
sys.stdin.read()
"""
"""A program: moto's S3 on the first side of a cable, with a bucket `share`."""

S3 = {
    "AWS_ENDPOINT_URL": "http://10.77.0.1:5000",
    "AWS_ACCESS_KEY_ID": "tests",
    "AWS_SECRET_ACCESS_KEY": "tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""How it is found."""


def missing() -> str:
    """Return why there can be no namespaces here; empty where there can."""
    if not sys.platform.startswith("linux") or not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "network namespaces need Linux and root"
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            return f"network namespaces need {program}"
    name = f"skytune-{os.getpid()}-probe"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network namespaces here: {done.stderr.strip()}"
    veth = subprocess.run(
        ["ip", "-n", name, "link", "add", "wire", "type", "veth", "peer", "name", "eriw"],
        capture_output=True,
        text=True,
        check=False,
    )
    subprocess.run(["ip", "netns", "del", name], check=True)
    return f"no virtual Ethernet here: {veth.stderr.strip()}" if veth.returncode else ""


class Cable:
    """Two namespaces, 10.77.0.1 and 10.77.0.2, and the cable between them."""

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self) -> None:
        number = f"{os.getpid()}-{next(NUMBERS)}"
        self.names = [f"skytune-{number}-a", f"skytune-{number}-b"]
        for name in self.names:
            self._ip("netns", "add", name)
        first, second = self.names
        self._ip("-n", first, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", second)
        for name, address in zip(self.names, self.addresses, strict=True):
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", name, "addr", "add", f"{address}/24", "dev", "wire")
            self._ip("-n", name, "link", "set", "wire", "up")

    def inside(self, which: int, words: list[str], hidden: Path | None = None) -> list[str]:
        """Return the command that runs `words` on one side; `hidden` is a folder that it does not see."""
        if hidden is not None:
            script = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {shlex.join(words)}"
            words = ["unshare", "--mount", "sh", "-c", script]
        return ["ip", "netns", "exec", self.names[which], *words]

    def cut(self) -> None:
        """Pull it out."""
        self._ip("-n", self.names[1], "link", "set", "wire", "down")

    def mend(self) -> None:
        """Put it in again."""
        self._ip("-n", self.names[1], "link", "set", "wire", "up")

    def remove(self) -> None:
        """Remove both sides."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)


def node_0(root: Path) -> int:
    """Run a job that is laid out."""
    from skytune.job import JobDir
    from skytune.launch.run_job import launcher_of

    job = JobDir(root)
    shutil.rmtree(job.outputs, ignore_errors=True)
    config = job.job.config
    launcher_of(config).run(job, config.compute)
    return 0


def another(file: Path) -> int:
    """Be another machine."""
    import json

    from skytune.config import RunConfig
    from skytune.launch.multinode.node import serve
    from skytune.launch.multinode.topology import nodes_of

    config = RunConfig.parse(json.loads(file.read_text()))
    return serve(config, nodes_of(config.launch, os.environ))


def main(place: Path) -> int:
    """Return the exit code that `src/run.py` would have."""
    import logging

    from skytune.config import Preempted, UserError

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        return node_0(place) if place.is_dir() else another(place)
    except KeyboardInterrupt:
        return 130
    except Preempted as error:
        print(f"preempted: {error}", flush=True)
        return 75
    except UserError as error:
        print(f"error: {error}", flush=True)
        return 1


def lay(home: Path, **arguments: Any) -> Path:
    """Return the job directory that `skytune.launch.train` lays out with these arguments."""
    from skytune.launch import train

    class Laid(Exception):
        pass

    class Stop:
        def run(self, job: Any, compute: Any) -> None:
            found.append(job.root)
            raise Laid

    found: list[Path] = []
    before, os.environ["SKYTUNE_HOME"] = os.environ.get("SKYTUNE_HOME"), str(home)
    try:
        train(**arguments, launcher=Stop())
    except Laid:
        pass
    finally:
        if before is None:
            del os.environ["SKYTUNE_HOME"]
        else:
            os.environ["SKYTUNE_HOME"] = before
    return found[0]


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
