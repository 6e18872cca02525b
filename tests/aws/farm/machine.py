"""The first process of a machine: boots it inside its own namespaces, then keeps it alive.

Started by the hypervisor as `python -m farm.machine SPEC.json`. It says "unshared" on standard output once its
network namespace exists, waits for a line (by then the hypervisor has put a cable in), boots, and says "ready" once
sshd answers. What goes wrong stands on standard error, which is the machine's console; the process then ends, and so
does everything in the machine.
"""

import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import linux, root, router

SSHD_SECONDS = 30
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main(spec: dict[str, Any]) -> int:
    """Boot the machine that `spec` describes and return when it ended."""
    linux.die_with_parent()
    linux.unshare(linux.EVERY_NAMESPACE)
    print("unshared", flush=True)
    if not sys.stdin.readline():
        return 1
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            linux.die_with_parent()
            code = _first(spec)
        except BaseException as error:
            _console(f"boot failed: {type(error).__name__}: {error}")
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _first(spec: dict[str, Any]) -> int:
    _console(f"{spec['id']}: {spec['type']} in {spec['zone']}, {spec['hostname']}")
    if spec["broken"] == "crash":
        raise RuntimeError("no bootable device (asked for by the test)")
    router.set_up_machine(spec["private_ip"], spec["public_ip"])
    top, disk = Path(spec["folder"], "mnt"), Path(spec["folder"], "disk")
    layers = [Path(layer) for layer in spec["layers"]]
    first_boot = not disk.exists()
    top.mkdir(exist_ok=True)
    linux.private_mounts()
    root.mount_disk(top, layers, disk)
    root.mount_host_parts(top, layers, disk)
    root.mount_kernel_parts(top)
    os.chroot(top)
    os.chdir("/")
    os.environ.clear()
    os.environ.update(PATH=_PATH, LANG="C.UTF-8", HOME="/root")
    socket.sethostname(spec["hostname"])
    Path("/etc/hostname").write_text(f"{spec['hostname']}\n")
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost\n{spec['private_ip']} {spec['hostname']}\n")
    if first_boot:
        _user_data(spec["user_data"])
    if spec["broken"] == "silent":
        _console("sshd does not start (asked for by the test)")
        sshd = linux.spawn(["sleep", "infinity"])
    else:
        sshd = linux.spawn(["/usr/sbin/sshd", "-D", "-e"], stdin=subprocess.DEVNULL, stdout=2)
        _wait_for_sshd(sshd)
    print("ready", flush=True)
    _console("ready")
    code = linux.be_first_until_ended(sshd.pid)
    _console(f"halted: its main process ended with {code}")
    return code


def _user_data(data: dict[str, Any]) -> None:
    """Do what cloud-init does with what SkyPilot sends; the failure of a command is only told."""
    for words in data.get("bootcmd") or []:
        _shell(words)
    for user in data.get("users") or []:
        if isinstance(user, dict):
            _user(user)
    for file in data.get("write_files") or []:
        path = Path(file["path"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["content"])
    for words in data.get("runcmd") or []:
        _shell(words)


def _user(user: dict[str, Any]) -> None:
    name = user["name"]
    if subprocess.run(["id", name], capture_output=True).returncode != 0:
        linux.command("useradd", "-m", "-p", "*", "-s", user.get("shell", "/bin/bash"), name)
    home = Path(os.path.expanduser(f"~{name}"))
    keys = home / ".ssh" / "authorized_keys"
    keys.parent.mkdir(mode=0o700, exist_ok=True)
    keys.write_text("".join(f"{key}\n" for key in user.get("ssh_authorized_keys") or []))
    linux.command("chown", "-R", f"{name}:", keys.parent)
    if user.get("sudo"):
        Path(f"/etc/sudoers.d/90-{name}").write_text(f"{name} {user['sudo']}\n")


def _shell(words: str | list[str]) -> None:
    line = words if isinstance(words, str) else shlex.join(words)
    done = subprocess.run(["sh", "-c", line], stdin=subprocess.DEVNULL, stdout=2)
    if done.returncode != 0:
        _console(f"user data: exit code {done.returncode}: {line}")


def _wait_for_sshd(sshd: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SSHD_SECONDS
    while time.monotonic() < end:
        if sshd.poll() is not None:
            raise RuntimeError(f"sshd ended with {sshd.returncode}")
        try:
            socket.create_connection(("127.0.0.1", 22), timeout=1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError(f"sshd did not answer within {SSHD_SECONDS} s")


def _console(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
