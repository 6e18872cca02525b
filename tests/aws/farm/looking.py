"""What a test sees of a farm: what runs, what it wrote, what was asked of AWS."""

import contextlib
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from . import namespace
from .bake import HOME, USER
from .control import Asking, FarmError
from .instance import Instance, id_of

T = TypeVar("T")


class Looking(Asking):
    """The part of `Farm` that only looks (and `execute`)."""

    def run(self, words: Sequence[str | Path], **options: Any) -> Any:
        """Run a program inside (done by `Farm`)."""
        raise NotImplementedError

    def instances(self, cluster: str | None = None, gone: bool = False) -> list[Instance]:
        """Return the machines that cost money, heads first, of one cluster or of all; with `gone`, those that did too.

        A stopped machine costs its disk, so it is listed.
        """
        rows = [Instance(**row) for row in self.call("instances")]
        rows = [row for row in rows if gone or row.state not in ("terminated", "shutting-down")]
        rows = [row for row in rows if cluster in (None, row.cluster)]
        return sorted(rows, key=lambda row: (row.cluster, not row.head, row.launch_time, row.private_ip))

    def since(self, before: Sequence[Instance]) -> list[Instance]:
        """Return the machines that were not among those that `instances(gone=True)` returned before, gone ones too."""
        known = {each.id for each in before}
        return [each for each in self.instances(gone=True) if each.id not in known]

    @staticmethod
    def wait(until: Callable[[], T], seconds: float = 30, for_: str = "") -> T:
        """Return what `until` returns as soon as that is true; raise FarmError after so many seconds."""
        end = time.monotonic() + seconds
        while not (found := until()):
            if time.monotonic() > end:
                raise FarmError(f"waited {seconds:g} s in vain{f' for {for_}' if for_ else ''}")
            time.sleep(0.05)
        return found

    def log(self, instance: Instance | str) -> str:
        """Return all that a machine wrote, gone ones too: its console, then SkyPilot's logs of every job on it."""
        parts = [(self._folder(instance) / "console.log").read_text(errors="replace")]
        with contextlib.suppress(FarmError):  # one that never booted has no disk
            for path in self.files(instance, "sky_logs/**/*.log"):
                parts.append(f"==> {path} <==\n{self.read(instance, path)}")
        return "\n".join(parts)

    def files(self, instance: Instance | str, pattern: str) -> list[str]:
        """Return the paths below the user's home that fit a pattern and that the machine wrote, gone ones too."""
        home = self._disk(instance) / HOME[1:]
        return sorted(str(path.relative_to(home)) for path in home.glob(pattern) if path.is_file())

    def read(self, instance: Instance | str, path: str) -> str:
        """Return a text file that the machine wrote, running or gone; relative paths start at the user's home.

        Not of /usr, /run or /dev: those are for `execute`.
        """
        return (self._disk(instance) / Path(HOME, path).relative_to("/")).read_text(errors="replace")

    def execute(
        self, instance: Instance | str, words: Sequence[str], user: str = USER, stdin: IO[Any] | None = None
    ) -> str:
        """Run a program on a running machine, with a bare environment; return its output, FarmError if it fails."""
        id_ = id_of(instance)
        pid = self._first_process_of(self.call("process", instance=id_))
        home = "/root" if user == "root" else HOME
        command = ["nsenter", "--target", str(pid), "--all", "--root", "--wd", "--", "env", "-i", "LANG=C.UTF-8"]
        command += [f"HOME={home}", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]
        if user != "root":
            command += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        done = self.run([*command, *words], stdin=stdin or subprocess.DEVNULL)
        if done.returncode != 0:
            raise FarmError(f"{id_}: {' '.join(words)} ended with {done.returncode}: {done.stdout.strip()}")
        return str(done.stdout)

    def calls(self, **patterns: str) -> list[dict[str, Any]]:
        """Return the calls of AWS's API that fit (service, action, region, zone, instance_type, key), oldest first.

        Each has these and `params`, `time`, `status` and `error` (a refusal of the farm's own; "" where moto answered).
        """
        return list(self.call("calls", **patterns))

    def events(self) -> list[dict[str, Any]]:
        """Return what befell machines, oldest first: boot, ready, notice, lost, found, off, failed, halted."""
        return list(self.call("events"))

    def failures(self) -> list[str]:
        """Return what the farm itself did wrong: machines that did not boot, errors of its own."""
        return list(self.call("failures"))

    def _folder(self, instance: Instance | str) -> Path:
        # By way of the farm's mounts: the disks may lie in a memory that only it sees.
        machines = (self.folder / "machines").relative_to("/")
        return Path(f"/proc/{namespace.first_process(self.folder)}/root") / machines / id_of(instance)

    def _disk(self, instance: Instance | str) -> Path:
        disk = self._folder(instance) / "disk" / "root" / "changed"
        if not disk.is_dir():
            raise FarmError(f"{id_of(instance)} has no disk (any more)")
        return disk

    def _first_process_of(self, keeper: int) -> int:
        """Return the pid, as seen inside the farm, of the first process of the machine with this keeper."""
        found = self.run(["cat", f"/proc/{keeper}/task/{keeper}/children"], check=True).stdout.split()
        if not found:
            raise FarmError("the machine is still booting")
        return int(found[0])
