"""A farm as a place: programs in it, its end with its session, and machines on which it cannot be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from farm import Farm, FarmError, Unavailable, namespace, places, programs


def test_a_program_inside_gets_signals_and_its_exit_code_comes_out(farm: Farm) -> None:
    assert farm.run(["sh", "-c", "exit 3"]).returncode == 3
    assert farm.run(["sh", "-c", "kill -9 $$"]).returncode == -9
    script = "trap 'echo told; exit 7' TERM; echo on; while :; do sleep 0.05; done"
    process = farm.popen(["bash", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "on\n"
    process.terminate()
    assert process.communicate(timeout=600)[0] == "told\n" and process.returncode == 7
    process = farm.popen(["bash", "-c", "echo $$; exec sleep 600"], stdout=subprocess.PIPE, text=True)
    pid = process.stdout.readline().strip() if process.stdout else ""
    process.kill()
    process.wait()
    farm.wait(lambda: farm.run(["test", "-d", f"/proc/{pid}"]).returncode != 0)


def test_skypilot_finds_a_network(farm: Farm) -> None:
    # It asks these two addresses; the farm answers with a certificate that its environment trusts.
    ask = "import requests; print(requests.head('https://8.8.8.8'))"
    assert farm.run([sys.executable, "-c", ask]).stdout.strip() == "<Response [200]>"


CRASH = """
import os, sys, time
sys.path.insert(0, {tests!r})
from farm import Farm
farm = Farm.up()
print(farm.folder, flush=True)
farm.popen(["sleep", "600"])
time.sleep(600)
"""


def test_a_farm_ends_with_its_session_and_the_next_one_tidies_up(farm: Farm) -> None:
    code = CRASH.format(tests=str(Path(__file__).parent))
    session = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert session.stdout is not None
    folder = Path(session.stdout.readline().strip())
    first = namespace.first_process(folder)
    assert folder.parent == places.FARMS and folder != farm.folder
    ask = [sys.executable, "-c", "from sky.utils import common_utils; print(common_utils.get_user_hash())"]
    users = [each.run(ask, check=True).stdout for each in (farm, Farm.attach(folder.name))]
    assert users[0] != users[1], "their SSH connections in /tmp go by that name"
    session.kill()
    session.wait()
    farm.wait(lambda: not Path(f"/proc/{first}").exists())  # the kernel took everything in there along
    with pytest.raises(FarmError, match="has ended"):
        namespace.first_process(folder)
    assert folder.name in namespace.sweep() and not folder.exists()
    assert farm.folder.exists() and farm.call("ping") == "pong"


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="asks what else than root is missing")
def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match="run it as root"):
        programs.require()
    monkeypatch.undo()
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(Unavailable, match="this is darwin"):
        programs.require()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="apt-get install curl iproute2 netcat-openbsd"):
        programs.require()


@pytest.mark.parametrize(("ci", "outcome"), [("", "1 skipped"), ("true", "1 error")])
def test_where_it_cannot_start_tests_are_skipped_but_fail_in_ci(ci: str, outcome: str, tmp_path: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"PATH": "/nowhere", "CI": ci}
    one = f"{__file__}::test_skypilot_finds_a_network"
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}", one]
    output = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True).stdout
    assert outcome in output.splitlines()[-1]
    assert any(reason in output for reason in ("apt-get install", "run it as root", "Linux namespaces"))
