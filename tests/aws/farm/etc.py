"""The /etc of a machine: the host's files that programs need, and users, sshd and package settings of its own."""

import os
import shutil
from pathlib import Path

from . import links, linux

# Nothing with a secret in it: no shadow, no ssh keys, no /etc/ssl/private, no settings of other programs.
_COPIED = [
    *[
        "alternatives",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "nsswitch.conf",
        "login.defs",
        "profile",
        "profile.d",
    ],
    *["bash.bashrc", "inputrc", "services", "protocols", "localtime", "timezone", "locale.alias", "locale.conf"],
    *["default/locale", "ssl/certs", "ssl/openssl.cnf", "ca-certificates.conf", "ssh/moduli", "security", "shells"],
    *["os-release", "debian_version", "lsb-release", "mime.types", "host.conf", "terminfo", "rpc", "networks", "skel"],
]

_SSHD = """\
# A machine's user logs in with the key from its user data, as on EC2. SkyPilot appends to this file.
PasswordAuthentication no
PermitRootLogin no
UsePAM no
UseDNS no
PrintMotd no
PidFile /run/sshd.pid
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
# The one thing that a real machine finds by DNS.
SetEnv AWS_ENDPOINT_URL=http://172.31.0.1:5000
"""

# Without pam_limits: raising limits needs a capability that containers and sandboxes drop.
_PAM = "auth sufficient pam_permit.so\naccount sufficient pam_permit.so\nsession sufficient pam_permit.so\n"


def write(top: Path, user: str, uid: int) -> None:
    """Write /etc and the home of `user` into the machine's tree at `top`."""
    etc = top / "etc"
    for name in _COPIED:
        source = Path("/etc", name)
        if source.is_dir():
            # Certificates are links into /usr, which the machine has; files that others may not read stay behind.
            shutil.copytree(source, etc / name, symlinks=True, ignore=_unreadable)
        elif source.is_file():
            (etc / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, etc / name, follow_symlinks=name not in ("localtime",))
    _users(top, user, uid)
    texts = {
        "ssh/sshd_config": _SSHD,
        "ssh/ssh_config": "Host *\n    HashKnownHosts no\n",
        "pam.d/sudo": _PAM,
        "pam.d/other": _PAM,
        "sudoers": "Defaults env_keep += AWS_ENDPOINT_URL\nroot ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n",
        "environment": "AWS_ENDPOINT_URL=http://172.31.0.1:5000\n",
        "fuse.conf": "#user_allow_other\n",
        "systemd/system.conf": "[Manager]\n",
        # For uv and pip: what may be installed in here is what lies in this folder.
        "uv/uv.toml": f'no-index = true\nfind-links = ["{links.WHEELS}"]\npython-downloads = "never"\n',
        "pip.conf": f"[global]\nno-index = true\nfind-links = {links.WHEELS}\n",
        "hosts": "127.0.0.1 localhost\n",
        "resolv.conf": "",
    }
    for name, text in texts.items():
        (etc / name).parent.mkdir(parents=True, exist_ok=True)
        (etc / name).write_text(text)
    (etc / "sudoers").chmod(0o440)
    (etc / "sudoers.d").mkdir()
    # One set of host keys for all machines: an address that comes again is no man in the middle.
    linux.command("ssh-keygen", "-A", "-q", "-f", top)


def _users(top: Path, user: str, uid: int) -> None:
    system = [line for line in Path("/etc/passwd").read_text().splitlines() if _number(line) < 1000]
    groups = [line for line in Path("/etc/group").read_text().splitlines() if _number(line) < 1000]
    home = f"/home/{user}"
    system.append(f"{user}:x:{uid}:{uid}:{user}:{home}:/bin/bash")
    groups.append(f"{user}:x:{uid}:")
    etc = top / "etc"
    (etc / "passwd").write_text("\n".join(system) + "\n")
    (etc / "group").write_text("\n".join(groups) + "\n")
    # "*": no password; with "!" sshd would take the account for locked.
    (etc / "shadow").write_text("".join(f"{line.split(':')[0]}:*:19000:0:99999:7:::\n" for line in system))
    (etc / "shadow").chmod(0o640)
    shutil.copytree("/etc/skel", top / home[1:])
    # `conda init` leaves this line, and SkyPilot looks for it.
    with (top / home[1:] / ".bashrc").open("a") as file:
        file.write("# >>> conda initialize >>>\n")
    linux.command("chown", "-R", f"{uid}:{uid}", top / home[1:])


def _number(line: str) -> int:
    fields = line.split(":")
    return int(fields[2]) if len(fields) > 2 and fields[2].isdigit() else 10**9


def _unreadable(folder: str, names: list[str]) -> set[str]:
    paths = [Path(folder, name) for name in names]
    return {path.name for path in paths if not path.is_symlink() and not os.stat(path).st_mode & 0o004}
