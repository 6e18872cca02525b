"""Process groups: ended for certain and promptly; modules started with the right package and nothing hidden."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skytune.launch import processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def reaper() -> Iterator[None]:
    """Orphans become this process's children, which it does not collect: as in a container without an init."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
    yield
    libc.prctl(36, 0, 0, 0, 0)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                break
        except ChildProcessError:
            break


def wait_for_zombie(pid: int) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)


@pytest.mark.usefixtures("reaper")
def test_zombies_are_not_waited_for() -> None:
    """A group of which only an uncollected zombie is left is dead, whatever the kernel's test says."""
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '0.2']).pid, flush=True)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    orphan = int(child.stdout.readline())
    child.wait()
    wait_for_zombie(orphan)
    os.killpg(child.pid, 0)  # the kernel says that the group is there
    start = time.monotonic()
    processes.end_group(child, grace=600.0)
    assert time.monotonic() - start < 300


def test_end_group_is_prompt_when_all_is_over() -> None:
    child = subprocess.Popen(["true"], start_new_session=True, stdout=subprocess.PIPE)
    wait_for_zombie(child.pid)  # nobody has waited for it
    start = time.monotonic()
    processes.end_group(child, grace=600.0)
    assert time.monotonic() - start < 300
    assert child.returncode == 0


DRIVER = """
import subprocess, sys, time
from skytune.launch import processes
stubborn = '''
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1]).touch())
print(1, flush=True)
while True: time.sleep(0.02)
'''
child = subprocess.Popen([sys.executable, "-c", stubborn, sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
try:
    try:
        print(child.pid, flush=True)
        while True: time.sleep(0.02)  # a long nap would miss a signal that comes just before it
    finally:
        processes.end_group(child, grace=600.0)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_second_interrupt_does_not_leave_processes_behind(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(asked)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pid = int(driver.stdout.readline())
    driver.send_signal(signal.SIGINT)
    while not asked.exists():
        assert driver.poll() is None
        time.sleep(0.01)
    driver.send_signal(signal.SIGINT)
    assert driver.wait(300) == 130, "it did not wait for the grace"
    assert not processes.group_alive(pid)


def test_a_file_beside_the_package_hides_no_library(tmp_path: Path) -> None:
    """Case 3 in a worker: its folder (`src`) holds an `evaluate.py`, and it is on PYTHONPATH too."""
    source = tmp_path / "src"
    ignore = shutil.ignore_patterns("__pycache__", "metrics", "report", "steps", "materializers")
    shutil.copytree(ROOT / "src" / "skytune", source / "skytune", ignore=ignore)
    (source / "evaluate.py").write_text("raise RuntimeError('the wrong file was imported')\n")
    (source / "skytune" / "which.py").write_text(
        "import importlib.util, skytune, sys\n"
        "print(importlib.util.find_spec('evaluate').origin, skytune.__file__, *sys.argv[1:])\n"
    )
    code = (
        "import subprocess, sys\nfrom skytune.launch import processes\n"
        "words = processes.module_command('skytune.which', 'word', processes=1, folder=None)\n"
        "sys.exit(subprocess.run(words, env=processes.environment(1, 1)).returncode)"
    )
    env = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=source, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    evaluate, package, word = done.stdout.split()
    assert "site-packages" in evaluate
    assert word == "word"
    assert Path(package).parent == source / "skytune"  # not another one that is installed


def test_torchrun_leaves_no_folders(tmp_path: Path) -> None:
    words = processes.module_command("skytune.which", processes=2, folder=tmp_path)
    assert words[words.index("--log-dir") + 1] == os.devnull, "else an empty /tmp/torchelastic_* every time"


def test_a_loopback_that_is_down_is_said_at_once() -> None:
    processes.check_loopback()
    code = "from skytune.launch.processes import check_loopback; check_loopback()"
    done = subprocess.run(["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"no network namespace here: {done.stderr.strip()}")
    assert done.stderr.splitlines()[-1].endswith(
        "`ip link set lo up` brings the loopback interface up; launch.num_processes=1 needs none"
    )
