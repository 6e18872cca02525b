"""Making the machine image once: what SkyPilot's own image brings, and the packages that machines may install.

Two read-only layers under every machine's own disk, each cached by a digest of what it is made from:

- the *image*: /etc, the users, sshd's configuration, and `~/skypilot-runtime` with Ray and what SkyPilot needs
  there (`image.txt` pins all of it; the only thing here that comes from a package index, 200 MB, by pip and its
  configuration);
- the *links* of `links.py`: the packages of this interpreter's environment, to be installed without a network.

A machine's /usr and its Python are the host's, seen through a copy-on-write mount; nothing else of the host is seen.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from . import etc, links, linux, root
from .places import CACHE, log
from .programs import Unavailable, runtime_python
from .warm import MACHINE_SOCKET

PINS = Path(__file__).with_name("image.txt")
USER, UID = "ubuntu", 1000
HOME = f"/home/{USER}"
_KEPT = 3
"""How many layers of a kind stay in the cache ..."""

_IN_USE_S = 24 * 3600
"""... and for how long any of them stays after a farm was started with it."""

_STUBS = {
    "systemctl": "# No systemd in here. SkyPilot reloads sshd with it.\n"
    '[ "$1" = reload ] && kill -HUP "$(cat /run/sshd.pid)"\nexit 0\n',
    "conda": "# SkyPilot's image brings conda, and its setup calls it. No test needs more of it.\nexit 0\n",
}


# Which programs of SkyPilot's on a machine are forked from one that has imported it (warm.py): those that ask and tell.
# What lives long or is known by its command line, Ray's servers and SkyPilot's own, starts as it does everywhere.
_PYTHON = """\
#!/bin/sh
real={real}
case "$1 $2 $3" in
    *"-c "*sky*|*/bin/ray\\ st*|"-m sky.skylet.attempt_skylet"*|*/sky_app/sky_job_*)
        [ -S {socket} ] && exec $real -I -S {ask} {socket} $real $real "$@" ;;
esac
exec $real "$@"
"""
_ASK, _WARM = "/opt/farm/ask.py", "/opt/farm/warm.py"
PROTOTYPE = [f"{HOME}/skypilot-runtime/bin/python3.11", _WARM, "--machines", USER]
"""The command, in a machine's tree, that serves `_PYTHON` on every machine; the modules to import follow."""


@dataclass(frozen=True)
class Image:
    """Where the baked layers lie."""

    image: Path
    links: Path
    wheels: Path
    """Real wheels of all that `image.txt` names, and of what builds wheels: pip in the farm takes them from here."""
    sky_wheels: Path
    """SkyPilot's wheel of itself, ready built, as it keeps it in ~/.sky/wheels."""
    seconds: float
    """What baking took; about 0 when both layers were in the cache."""

    @property
    def layers(self) -> list[Path]:
        """The lower layers of a machine's disk, topmost first."""
        return [self.links / "root", self.image / "root"]


def bake() -> Image:
    """Return the layers, made now unless they are in the cache; one process at a time makes them."""
    began = time.monotonic()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "bake.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wheels = _layer("wheels", _digest(f"{runtime_python()} {_builder()}", "image.txt"), _download)
        digest = _digest(f"{wheels.name} {root.pythons()}", "bake.py", "etc.py", "root.py", "warm.py", "ask.py")
        image = _layer("image", digest, lambda half: _bake_image(half, wheels))
        linked = _layer("links", _digest(links.fingerprint(), "links.py"), _bake_links)
    return Image(image, linked, wheels, image / "sky-wheels", time.monotonic() - began)


def _layer(kind: str, digest: str, make: Callable[[Path], None]) -> Path:
    """Return the folder of a layer; make it under another name first, so that half of one is never taken for one."""
    final = CACHE / "layers" / f"{kind}-{digest}"
    if not final.exists():
        half = CACHE / "layers" / f"half-{kind}"
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        log(f"baking the {kind} layer (once; it is kept in {CACHE})")
        began = time.monotonic()
        make(half)
        half.rename(final)
        log(f"baked the {kind} layer in {time.monotonic() - began:.0f} s")
    os.utime(final)
    others = sorted((CACHE / "layers").glob(f"{kind}-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in others[_KEPT:]:
        if time.time() - old.stat().st_mtime > _IN_USE_S:  # another farm, of another checkout, may stand on it
            shutil.rmtree(old, ignore_errors=True)
    return final


def _digest(seed: str, *names: str) -> str:
    """Return a digest of `seed` and of the files beside this one that have these names."""
    content = b"".join(Path(__file__).with_name(name).read_bytes() for name in names)
    return hashlib.sha256(f"{seed} {platform.machine()}".encode() + content).hexdigest()[:16]


def _bake_links(half: Path) -> None:
    links.write(half / "root")


def _bake_image(half: Path, wheels: Path) -> None:
    top = half / "root"
    top.mkdir()
    root.skeleton(top)
    etc.write(top, USER, UID)
    programs = top / "usr" / "local" / "bin"
    programs.mkdir(parents=True)
    # A script, not a link: a Python that is called by a link looks for its library beside the link.
    python = Path(sys.executable).resolve()
    texts = _STUBS | {f"python3.{sys.version_info[1]}": f'exec {python} "$@"\n'}
    for name, text in texts.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}")
        (programs / name).chmod(0o755)
    _unpack_uv(wheels, programs / "uv")
    sky_wheel = _build_sky_wheel(half, wheels)
    # A process of its own, so that the mounts that it needs vanish with it.
    _in_child(lambda: _install_runtime(top, wheels, sky_wheel))
    _warm_python(top)
    for left in (top / "tmp").iterdir():
        left.unlink() if left.is_file() else shutil.rmtree(left)


def _download(folder: Path) -> None:
    """Fetch (or build, where there is no wheel) the pinned packages for the Python of SkyPilot's runtime."""
    words = [sys.executable, "-m", "pip", "--python", runtime_python(), "wheel", "--quiet", "--no-deps"]
    words += ["--disable-pip-version-check", "--wheel-dir", str(folder)]
    for wanted in (["--requirement", str(PINS)], [_builder()]):
        done = subprocess.run([*words, *wanted], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(f"pip could not fetch what SkyPilot's runtime needs ({wanted[-1]}): {done.stderr[-600:]}")


def _builder() -> str:
    """Return what builds wheels in the farm, SkyPilot's and this project's: the setuptools of this environment."""
    return f"setuptools=={version('setuptools')}"


def _unpack_uv(wheels: Path, target: Path) -> None:
    (wheel,) = wheels.glob("uv-*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".data/scripts/uv")]
        target.write_bytes(opened.read(name))
    target.chmod(0o755)


def _install_runtime(top: Path, wheels: Path, sky_wheel: Path) -> None:
    """Install SkyPilot's runtime at the path that it has in a machine: chroot, as the machine's user, offline.

    SkyPilot itself is put in as its launch would do it, which then finds it done: saves every machine ten seconds of
    installing and compiling.
    """
    linux.unshare(linux.NEWNS)
    linux.private_mounts()
    root.mount_host_parts(top)
    root.mount_kernel_parts(top)
    (top / "tmp" / "wheels").mkdir()
    linux.bind(wheels, top / "tmp" / "wheels")
    home = Path(HOME)
    shutil.copy(sky_wheel, top / "tmp" / sky_wheel.name)
    pins = [line for line in PINS.read_text().splitlines() if not line.startswith(("#", "uv==", "skypilot=="))]
    (top / "tmp" / "pins.txt").write_text("\n".join(pins))
    os.chroot(top)
    os.chdir("/")
    os.setgroups([])
    os.setgid(UID)
    os.setuid(UID)
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local" / "bin" / "uv").symlink_to("/usr/local/bin/uv")
    runtime = str(home / "skypilot-runtime")
    env = {"HOME": HOME, "PATH": "/usr/local/bin:/usr/bin:/bin", "VIRTUAL_ENV": runtime, "UV_CACHE_DIR": "/tmp/uv"}
    offline = ["--quiet", "--no-config", "--offline", "--no-index", "--find-links", "/tmp/wheels"]
    # Compiled now, once: every machine would otherwise compile, and copy, for itself.
    install = ["uv", "pip", "install", *offline, "--compile-bytecode", "--no-deps"]
    for words in (
        ["uv", "venv", *offline, "--seed", "--python", runtime_python(), runtime],
        [*install, "--requirement", "/tmp/pins.txt", f"/tmp/{sky_wheel.name}"],
        [f"{runtime}/bin/python", "-c", "from sky.skylet.ray_patches import patch; patch()"],
    ):
        subprocess.run(words, env=env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    stamp = home / ".sky" / "wheels" / "current_sky_wheel_hash"
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(f"{sky_wheel.parent.name}\n")


def _warm_python(top: Path) -> None:
    """Put a script in the place of the runtime's `python`, beside the `python3.11` that it calls."""
    for path in (_ASK, _WARM):
        target = top / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(__file__).with_name(target.name), target)
    programs = top / HOME[1:] / "skypilot-runtime" / "bin"
    real, script = programs / "python3.11", programs / "python"
    script.unlink()
    real.unlink()
    real.symlink_to(runtime_python())
    script.write_text(_PYTHON.format(real=f"/{real.relative_to(top)}", socket=MACHINE_SOCKET, ask=_ASK))
    script.chmod(0o755)
    os.chown(script, UID, UID)


def _build_sky_wheel(half: Path, wheels: Path) -> Path:
    """Have SkyPilot build its wheel of itself, which it uploads to every cluster; return it. Its folder is its hash."""
    home = half / "home"
    home.mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "SKY"))}
    env |= {"HOME": str(home), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": "/dev/null"}
    env |= {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "TMPDIR": str(home)}
    build = "from sky.backends import wheel_utils; wheel_utils.build_sky_wheel()"
    subprocess.run([sys.executable, "-c", build], env=env, check=True, stdin=subprocess.DEVNULL)
    shutil.copytree(home / ".sky" / "wheels", half / "sky-wheels")
    shutil.rmtree(home)
    (wheel,) = (half / "sky-wheels").rglob("*.whl")
    return wheel


def _in_child(work: Callable[[], None]) -> None:
    """Run `work` in a forked process; raise if it failed."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print(f"baking failed: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise RuntimeError("the machine image could not be baked; the reason stands above")
