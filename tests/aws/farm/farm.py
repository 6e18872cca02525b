"""A running farm, as a test or a person uses it."""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import catalog, linux, namespace, programs
from .account import CERTIFICATE, PORT, USER_KEY, USER_SECRET
from .bake import bake
from .control import FarmError
from .instance import Instance
from .looking import Looking
from .places import FARMS
from .switches import Switches

_CREDENTIALS = f"[default]\naws_access_key_id = {USER_KEY}\naws_secret_access_key = {USER_SECRET}\n"
_FOREIGN = ("AWS_", "SKYPILOT_", "SKY_", "PIP_", "UV_", "MOTO_", "ZENML_", "PYTHON", "VIRTUAL_ENV", "XDG_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Farm(Switches, Looking):
    """A stand-in for an AWS account: its API, its machines, and what can go wrong with both.

    Made by `up` (or `attach`, to one that runs). Everything here is called from outside of the farm's namespaces.
    """

    def __init__(self, folder: Path, keep_open: int | None = None) -> None:
        self.folder = folder
        self.home = folder / "home"
        """HOME of the AWS account's user: ~/.aws, ~/.sky"""
        self.seconds: dict[str, float] = {}
        """How long baking and starting took."""
        self._keep_open = keep_open
        self._declared: list[str] = []

    @classmethod
    def up(cls, name: str | None = None) -> "Farm":
        """Start a farm: `name` None for one that ends with this process, else one that stays until `down`.

        Raises programs.Unavailable where this machine cannot run one, FarmError where it should and did not.
        """
        programs.require()
        namespace.sweep()
        image = bake()
        began = time.monotonic()
        me = {"pid": os.getpid(), "start": linux.start_time(os.getpid())}
        folder = FARMS / (name or f"session-{me['pid']}-{me['start']}")
        if namespace.runs(folder):
            raise FarmError(f"a farm named {name} runs already")
        shutil.rmtree(folder, ignore_errors=True)
        farm = cls(folder)
        farm._write_home(image.sky_wheels)
        spec = {
            "layers": [str(layer) for layer in image.layers],
            "wheels": str(image.wheels),
            "tmp": tempfile.mkdtemp(prefix="farm-"),
            "owner": me if name is None else None,
        }
        (folder / "farm.json").write_text(json.dumps(spec))
        farm._keep_open = namespace.start(folder, with_me=name is None)
        farm.seconds = {"bake": image.seconds, "up": time.monotonic() - began}
        return farm

    @classmethod
    def attach(cls, name: str) -> "Farm":
        """Return the farm with this name that runs; raise FarmError if none does."""
        namespace.first_process(FARMS / name)
        return cls(FARMS / name)

    def down(self) -> None:
        """End the farm: its machines, SkyPilot's API server, everything that was started in it; remove its folder."""
        namespace.end(self.folder, remove=not os.environ.get("SKYTUNE_FARM_KEEP"))
        if self._keep_open is not None:
            os.close(self._keep_open)
            self._keep_open = None

    # What a process inside needs, and running one.

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a process inside: this process's, without what points at another account."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN) and k not in _PROXIES}
        programs_here = Path(sys.executable).parent
        system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        spec = json.loads((self.folder / "farm.json").read_text())
        certificate = str(self.folder / CERTIFICATE)
        env |= {
            "HOME": str(self.home),
            "USER": "root",
            "LANG": "C.UTF-8",
            "TMPDIR": spec["tmp"],
            "PATH": f"{programs_here}:{system}",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{PORT}",
            # The metadata service is for machines; the user's credentials lie in ~/.aws.
            "AWS_EC2_METADATA_DISABLED": "true",
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "ZENML_ANALYTICS_OPT_IN": "false",
            "SKYPILOT_DEBUG": "0",
            # SkyPilot asks https://8.8.8.8 whether there is a network; here that is the farm.
            "SSL_CERT_FILE": certificate,
            "REQUESTS_CA_BUNDLE": certificate,
            # What pip and uv may take to build a wheel: SkyPilot's own, this project's.
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": spec["wheels"],
            "PIP_CONFIG_FILE": "/dev/null",
            "UV_NO_INDEX": "1",
            "UV_FIND_LINKS": spec["wheels"],
            "UV_OFFLINE": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }
        return env | more

    def popen(self, words: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """Start a program inside; options are those of subprocess.Popen.

        Signals sent to the returned process reach the program; killing it kills the program (not that one's children).
        """
        pid = namespace.first_process(self.folder)
        folder = options.pop("cwd", None) or os.getcwd()
        enter = [sys.executable, "-I", "-S", str(Path(__file__).with_name("enter.py")), str(pid), str(folder)]
        options.setdefault("env", self.environment())
        return subprocess.Popen([*enter, *[str(word) for word in words]], **options)

    def run(
        self, words: Sequence[str | Path], *, timeout: float | None = None, check: bool = False, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside to its end; its output is text, standard error included in standard output.

        On a timeout the program is killed and subprocess.TimeoutExpired raised; with `check`, a failure raises
        FarmError with the output's end.
        """
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        with self.popen(words, text=True, errors="replace", **options) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except BaseException:
                process.kill()
                raise
        if check and process.returncode != 0:
            message = "\n".join((out or "").splitlines()[-40:])
            raise FarmError(f"{words[0]} ended with {process.returncode}:\n{message}")
        return subprocess.CompletedProcess(list(words), process.returncode, out, err)

    def shell(self) -> int:
        """Give the terminal a shell inside; return its exit code."""
        words = ["bash", "--noprofile", "--rcfile", str(self.home / ".bashrc"), "-i"]
        return self.popen(words).wait()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Within the block this thread's new connections are made inside, e.g. those of `client`."""
        with linux.network_of(namespace.first_process(self.folder)):
            yield

    def client(self, service: str, region: str = "us-east-1", **config: Any) -> Any:
        """Return a boto3 client of the account (`config`: botocore.config.Config's); use it within `inside()`."""
        import boto3
        from botocore.config import Config

        keys = {"aws_access_key_id": USER_KEY, "aws_secret_access_key": USER_SECRET}
        endpoint = f"http://127.0.0.1:{PORT}"
        return boto3.session.Session().client(
            service, region_name=region, endpoint_url=endpoint, config=Config(**config), **keys
        )

    # What a test says should run.

    @property
    def declared(self) -> list[str]:
        """The clusters that may run now."""
        return list(self._declared)

    @contextlib.contextmanager
    def declare(self, *clusters: str) -> Iterator[None]:
        """Within the block (a fixture's, say) machines of these clusters may run between tests."""
        self._declared += clusters
        try:
            yield
        finally:
            for cluster in clusters:
                self._declared.remove(cluster)

    def undeclared(self, settle_s: float = 3) -> list[Instance]:
        """Return the machines that run and are of no declared cluster, waiting a moment for those that are ending."""
        end = time.monotonic() + settle_s
        while left := [each for each in self.instances() if each.cluster not in self._declared]:
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return left

    def _write_home(self, sky_wheels: Path) -> None:
        (self.home / ".aws").mkdir(parents=True)
        (self.home / ".aws" / "credentials").write_text(_CREDENTIALS)
        (self.home / ".aws" / "config").write_text("[default]\nregion = us-east-1\n")
        (self.home / ".bashrc").write_text("PS1='(farm) \\w\\$ '\nalias ll='ls -l'\n")
        catalog.write_skypilot_catalog(self.home)
        # SkyPilot makes it of user and host, alike in all farms, and names the folder of its SSH connections in /tmp
        # by it: those of two farms at once, whose machines have the same addresses, would be taken for each other.
        (self.home / ".sky").mkdir(exist_ok=True)
        (self.home / ".sky" / "user_hash").write_text(secrets.token_hex(4))
        # Copied without its dates: SkyPilot builds the wheel anew if it is older than its own source files.
        for path in sky_wheels.rglob("*.whl"):
            target = self.home / ".sky" / "wheels" / path.relative_to(sky_wheels)
            target.parent.mkdir(parents=True)
            shutil.copyfile(path, target)
