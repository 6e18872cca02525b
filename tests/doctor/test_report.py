"""The doctor: two whole runs in processes of their own (a good machine, a bad one), and every check by itself."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from skytune.common.findings import Finding, Level
from skytune.doctor import checks, versions
from skytune.doctor import report as doctor

NAMES = [
    "python",
    "versions",
    "demo",
    "cpu",
    "gpu",
    "2 x gloo",
    "disk runs",
    "hub",
    "zenml",
    "stack",
    "disk zenml",
    "dashboard",
]


def run_doctor(**variables: str) -> tuple[subprocess.CompletedProcess[str], float]:
    unset = ("ZENML_LOCAL_STORES_PATH", "ZENML_STORE_URL", "HF_HUB_OFFLINE")
    env = {**{k: v for k, v in os.environ.items() if k not in unset}, "COLUMNS": "100", **variables}
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "skytune.doctor.report"], env=env, capture_output=True, text=True, timeout=600
    )
    return done, time.monotonic() - start


def levels(output: str) -> dict[str, str]:
    """Return level by name from the printed lines."""
    found = {}
    for line in output.splitlines():
        if line.startswith("  ") and line[2:6].strip() in [level.value for level in Level]:
            found[line[8:20].strip()] = line[2:6].strip()
    return found


@pytest.fixture
def hub() -> Iterator[str]:
    """A hub that answers; `/broken` does so with HTTP 503."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(503 if self.path == "/broken" else 200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_a_good_machine(tmp_path: Path, hub: str) -> None:
    done, _ = run_doctor(ZENML_CONFIG_PATH=str(tmp_path / "zenml"), HF_ENDPOINT=hub)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found = levels(done.stdout)
    assert [name for name in found if name in NAMES] == NAMES, done.stdout
    assert "FAIL" not in found.values()
    assert found["hub"] == "ok"
    assert found["2 x gloo"] == "ok"
    assert f"0 runs in {tmp_path}/zenml/local_stores" in done.stdout.replace("\n" + " " * 20, " ")
    assert "orchestrator local" in done.stdout
    assert max(len(line) for line in done.stdout.splitlines() if str(tmp_path)[:20] not in line) <= 100
    assert done.stdout.rstrip().endswith("python src/run.py")
    assert not (tmp_path / "skytune-home").exists()  # looking leaves nothing behind


@pytest.mark.slow
def test_a_bad_machine(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    done, seconds = run_doctor(
        SKYTUNE_HOME=str(tmp_path / "file" / "home"),
        HF_ENDPOINT="http://127.0.0.1:9",
        ZENML_CONFIG_PATH=str(tmp_path / "file" / "zenml"),
    )
    found = levels(done.stdout)
    assert done.returncode == 1
    assert (found["disk runs"], found["zenml"], found["hub"], found["2 x gloo"]) == ("FAIL", "FAIL", "warn", "ok"), (
        done.stdout
    )
    assert "SKYTUNE_HOME chooses another folder" in done.stdout
    assert "ZENML_CONFIG_PATH" in done.stdout
    assert "not ready: 2 of these" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert seconds < 500


def requirements(*texts: str, extra: str = "train") -> list[tuple[str, object]]:
    from packaging.requirements import Requirement

    return [(extra, Requirement(text)) for text in texts]


def test_versions_as_they_are_here() -> None:
    found = versions.versions()
    assert {finding.level for finding in found} <= {Level.ok, Level.warn}
    assert versions.checkout() is not None


def test_a_wrong_pin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    here = versions.metadata.version("numpy")
    monkeypatch.setattr(versions, "_pins", lambda file: {"numpy": "0.9.1"})
    monkeypatch.setattr(versions, "_requirements", lambda root: requirements("numpy>=1", "safetensors"))
    (finding,) = versions.versions()
    assert finding == Finding(Level.warn, "versions", f"not as tested: numpy {here} (pinned 0.9.1)", "make install")


def test_a_version_out_of_range_and_a_missing_package_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = requirements("numpy>=99", "no-such-package-here==1") + requirements("nor-this-one", extra="wandb")
    monkeypatch.setattr(versions, "_requirements", lambda root: wanted)
    missing, old = versions.versions()
    assert (old.level, missing.level) == (Level.fail, Level.fail)
    assert "(needs >=99)" in old.text
    assert missing.text == "not installed: no-such-package-here"
    assert ".[train]" in missing.way_out


def test_a_build_for_one_device_is_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "_requirements", lambda root: requirements("torch==2.13.0"))
    monkeypatch.setattr(versions, "_pins", lambda file: {"torch": "2.13.0"})
    monkeypatch.setattr(versions.metadata, "version", lambda name: "2.13.0+cpu")
    (finding,) = versions.versions()
    assert finding.level is Level.ok


def test_a_wheel_has_no_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "checkout", lambda: None)
    found = versions.versions()
    assert found[-1].level is Level.ok
    assert "constraints.txt is not part of a wheel" in found[-1].text


def test_pins_are_those_of_this_platform(tmp_path: Path) -> None:
    file = tmp_path / "constraints.txt"
    file.write_text(
        "# made by a command\nSome_Name==1.2  # via x\na==1 ; sys_platform == 'win32'\na==2 ; sys_platform != 'win32'\n"
    )
    assert versions._pins(file) == {"some-name": "1.2", "a": "2"}


def test_demo_packages_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "DEMO", ("numpy", "no-such-package-here"))
    (finding,) = versions.demo()
    assert (finding.level, finding.text) == (Level.warn, "not installed: no-such-package-here")


@pytest.mark.parametrize(("free", "level"), [(6e9, Level.ok), (4.9e9, Level.warn), (4.9e8, Level.fail)])
def test_free_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, level: Level) -> None:
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    (finding,) = checks.disk("runs", tmp_path / "not" / "yet" / "made", "SKYTUNE_HOME")
    assert finding.level is level
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_fails(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (finding,) = checks.disk("runs", Path("/dev/full/home"), "SKYTUNE_HOME")
    assert finding.level is Level.fail
    assert "SKYTUNE_HOME" in finding.way_out


def test_hub_that_answers_or_not(hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub)
    assert checks.hub()[0].level is Level.ok
    for address, why in [
        (f"{hub}/broken", "HTTP 503"),
        ("http://127.0.0.1:9", "does not answer"),
        ("nonsense", "does not answer"),
    ]:
        monkeypatch.setenv("HF_ENDPOINT", address)
        (finding,) = checks.hub()
        assert finding.level is Level.warn
        assert why in finding.text
        assert all(way in finding.way_out for way in ("model.name=/path", "HF_ENDPOINT", "embedded default"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in checks.hub()[0].text


def test_a_hub_that_accepts_and_says_nothing_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(checks, "HUB_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        (finding,) = checks.hub()
    assert finding.level is Level.warn
    assert time.monotonic() - start < 300


def test_processes_that_do_not_find_each_other_are_ended() -> None:
    start = time.monotonic()
    (finding,) = checks.all_reduce("gloo", 2, timeout=0.5)
    assert finding.level is Level.fail
    assert "no result within" in finding.text
    assert time.monotonic() - start < 300


def test_processes_that_add_up_listen_on_the_loopback_alone() -> None:
    import psutil

    found: set[str] = set()
    with ThreadPoolExecutor() as pool:
        checked = pool.submit(checks.all_reduce)
        while not checked.done():
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    places = process.net_connections("inet")
                    found |= {place.laddr.ip for place in places if place.status == psutil.CONN_LISTEN}
        (finding,) = checked.result()
    assert finding.level is Level.ok
    assert found <= {"127.0.0.1"}


def test_a_backend_that_fails_says_why() -> None:
    message = (
        "W0101 00:00:00 a warning that names an Error: not this\n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "allreduce.py", line 20, in main\n'
        "[rank1]: torch.distributed.DistBackendError: NCCL error: no system\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
    )
    assert checks._last_error(message) == "torch.distributed.DistBackendError: NCCL error: no system"
    assert checks._last_error("nothing of the kind") == ""


def test_dashboard() -> None:
    assert doctor.dashboard("http://127.0.0.1:8237").level is Level.ok
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = doctor.dashboard(None, port)
    assert finding.level is Level.warn
    assert "zenml login --local --port" in finding.way_out
    assert doctor.dashboard(None, port).level is Level.ok


def test_a_check_that_breaks_is_a_finding() -> None:
    def broken() -> list[Finding]:
        raise RuntimeError("it broke\nbadly")

    assert doctor._safely("name", broken) == [Finding(Level.fail, "name", "RuntimeError: it broke")]


@pytest.mark.parametrize(("level", "code"), [(Level.ok, 0), (Level.warn, 0), (Level.fail, 1)])
def test_exit_code(
    level: Level, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finding = Finding(level, "name", "found " * 30, "do this")
    monkeypatch.setattr(doctor, "examine", lambda: iter([finding]))
    monkeypatch.setattr(versions, "checkout", lambda: None)
    assert doctor.main([]) == code
    shown = capsys.readouterr().out
    assert "-> do this" in shown
    assert "\033" not in shown


def test_lines_keep_to_the_width() -> None:
    shown = doctor.line(Finding(Level.warn, "name", "word " * 50, "way " * 50), width=80).splitlines()
    assert len(shown) > 4
    assert max(map(len, shown)) <= 80
    assert shown[0].startswith("  warn  name        word")
