"""The farm's own namespaces (network without an uplink, processes, mounts), and how they end.

Everything of a farm, its machines and SkyPilot's API server included, is a descendant of one first process. The kernel
kills them all with it: so ending a farm, after a crash too, is one kill of one process that is known by its pid and
its start time (`state.json`). A farm that belongs to a test session ends with it: it holds the reading end of a pipe
whose other end only the session has.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from . import control, linux
from .control import FarmError
from .places import FARMS

STATE = "state.json"
_PACKAGE = Path(__file__).resolve().parents[1]


def start(folder: Path, with_me: bool, timeout: float = 60) -> int | None:
    """Start the farm whose folder is ready; return what to keep open as long as it is to live, if `with_me`."""
    reading, writing = os.pipe() if with_me else (-1, None)
    words = [sys.executable, "-m", "farm.namespace", str(folder), str(reading)]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "MOTO_", "PYTHON"))}
    env |= {"PYTHONPATH": str(_PACKAGE), "PYTHONUNBUFFERED": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    with (folder / "cloud.log").open("ab") as out:
        process = subprocess.Popen(
            words,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            pass_fds=[reading] if with_me else [],
            start_new_session=True,  # Ctrl-C in the terminal is for the tests, which still need the farm to tidy up
        )
    if with_me:
        os.close(reading)
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            control.call(folder, "ping", timeout=5)
            return writing
        except FarmError:
            if process.poll() is not None:
                break
            time.sleep(0.05)
    process.kill()
    process.wait()
    raise FarmError(f"the farm did not start:\n{(folder / 'cloud.log').read_text()[-3000:]}")


def first_process(folder: Path) -> int:
    """Return the pid of a running farm's first process; raise FarmError if it does not run."""
    try:
        state = json.loads((folder / STATE).read_text())
    except (OSError, ValueError):
        raise FarmError(f"no farm runs in {folder}") from None
    if state["start"] is None or linux.start_time(state["pid"]) != state["start"]:
        raise FarmError(f"the farm in {folder} has ended")
    return int(state["pid"])


def runs(folder: Path) -> bool:
    """Whether the farm in `folder` runs."""
    try:
        first_process(folder)
    except FarmError:
        return False
    return True


def end(folder: Path, remove: bool = True) -> None:
    """End the farm in `folder`, if it runs, and remove the folder and what it left in the system's temporary folder."""
    if runs(folder):
        pid = first_process(folder)
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 20
        while linux.start_time(pid) is not None:
            if time.monotonic() > deadline:
                raise FarmError(f"the farm's first process {pid} does not die")
            time.sleep(0.02)
    if remove:
        for path in _temporary(folder):
            shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _temporary(folder: Path) -> list[Path]:
    """Return the farm's own TMPDIR, and SkyPilot's folder of SSH connections, which is in /tmp whatever TMPDIR is."""
    found = []
    with contextlib.suppress(OSError, ValueError, KeyError):
        found.append(Path(json.loads((folder / "farm.json").read_text())["tmp"]))
    with contextlib.suppress(OSError):
        user = (folder / "home" / ".sky" / "user_hash").read_text().strip()
        found += [Path("/tmp", f"skypilot_ssh_{user}")] if user else []
    return found


def sweep() -> list[str]:
    """End and remove the farms of test sessions that are no more; return their names."""
    swept = []
    for folder in sorted(FARMS.glob("*")):
        try:
            spec = json.loads((folder / "farm.json").read_text())
        except (OSError, ValueError):
            spec = {"owner": None}
        owner = spec["owner"]
        if owner is not None and linux.start_time(owner["pid"]) != owner["start"]:
            end(folder)
            swept.append(folder.name)
    return swept


def main(folder: Path, owner: int) -> int:
    """Make the namespaces, run the farm's service in them, and end when it ends or when the owner's pipe closes."""
    # The mounts are the first process's own: its /proc does not show the pids that are written down here.
    linux.unshare(linux.EVERY_NAMESPACE & ~linux.NEWNS)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            linux.die_with_parent()
            code = _first(folder)
        except BaseException as error:
            print(f"farm: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    half = folder / f"{STATE}.half"
    half.write_text(json.dumps({"pid": pid, "start": linux.start_time(pid)}))
    half.rename(folder / STATE)
    ended = os.pidfd_open(pid)
    watched = [ended, owner] if owner >= 0 else [ended]
    ready, _, _ = select.select(watched, [], [])
    if ended not in ready:
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _first(folder: Path) -> int:
    linux.unshare(linux.NEWNS)
    linux.private_mounts()
    linux.mount("proc", "/proc", "proc")
    socket.sethostname("farm")
    # ssh takes the home of a user from here, not from HOME.
    lines = Path("/etc/passwd").read_text().splitlines()
    root = f"root:x:0:0:root:{folder / 'home'}:/bin/bash"
    texts = {
        "passwd": "\n".join([root, *[line for line in lines if not line.startswith("root:")], ""]),
        "resolv.conf": "",
        "hosts": "127.0.0.1 localhost farm\n",
    }
    for name, text in texts.items():
        own = folder / "etc" / name
        own.parent.mkdir(exist_ok=True)
        own.write_text(text)
        if Path("/etc", name).exists():
            linux.bind(own, Path("/etc", name).resolve())
    _place_for_disks(folder / "machines")
    service = linux.spawn([sys.executable, "-m", "farm.cloud", folder], stdin=subprocess.DEVNULL)
    return linux.be_first_until_ended(service.pid)


def _place_for_disks(machines: Path) -> None:
    """Make the folder of the machines' disks; in memory where its file system cannot carry a copy-on-write mount.

    So it is in a container, whose own root is such a mount.
    """
    parts = [machines / "trial" / name for name in ("lower", "upper", "work", "at")]
    for part in parts:
        part.mkdir(parents=True)
    lower, upper, work, at = parts
    try:
        linux.mount("overlay", at, "overlay", options=f"lowerdir={lower},upperdir={upper},workdir={work}")
        linux.command("umount", at)
    except OSError:
        linux.mount("tmpfs", machines, "tmpfs")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
