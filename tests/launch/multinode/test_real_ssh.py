"""`launch.hosts` with OpenSSH itself: a server in one network namespace, node 0 in another."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines_apart import ROOT, Cable, lay, missing


def lacks() -> str:
    for program in ("/usr/sbin/sshd", "ssh", "ssh-keygen", "rsync"):
        if shutil.which(program) is None:
            return f"needs {program}"
    return missing()


pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(bool(reason := lacks()), reason=reason or "here"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Cable, Path]]:
    """A cable with an SSH server on its far side, and a folder whose `ssh` uses the key that it takes."""
    folder = tmp_path / "ssh"
    folder.mkdir(mode=0o700)
    for name in ("host", "mine"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    (folder / "authorized_keys").write_text((folder / "mine.pub").read_text())
    (folder / "known_hosts").write_text(f"{Cable.addresses[1]} {(folder / 'host.pub').read_text()}")
    (folder / "sshd_config").write_text(
        f"HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        f"PasswordAuthentication no\nPermitRootLogin yes\nPidFile {folder}/pid\nListenAddress {Cable.addresses[1]}\n"
    )
    # What a person has in ~/.ssh/config; ssh looks for that in the home of /etc/passwd, which is not the test's.
    (folder / "config").write_text(f"IdentityFile {folder}/mine\nUserKnownHostsFile {folder}/known_hosts\n")
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    cable = Cable()
    (tmp_path / "a").mkdir()
    words = ["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")]
    words = cable.inside(1, words, hidden=tmp_path / "a")  # node 0's home is another one there
    with (folder / "log").open("wb") as out:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until = time.monotonic() + 600
        while "listening" not in (folder / "log").read_text():
            assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.05)
        yield cable, folder
    finally:
        process.terminate()
        process.wait(600)
        cable.remove()


def test_a_host_is_started_and_trains(
    server: tuple[Cable, Path], run_job: Any, tokenized: Any, tiny_model: Path, tmp_path: Path
) -> None:
    from safetensors.numpy import load_file
    from transformers import AutoTokenizer

    from skytune.config import RunConfig, from_dict

    cable, folder = server
    data = {
        "train_split": tokenized(32),
        "evaluation": {"validation": tokenized(8, 1)},
        "tokenizer": AutoTokenizer.from_pretrained(tiny_model),
    }
    several = {
        "hosts": [f"root@{Cable.addresses[1]}"],
        "timeouts": {"start": 600.0, "kill": 3.0},
        "master_addr": Cable.addresses[0],
    }
    configs = [
        from_dict(
            RunConfig,
            {
                "name": "over-ssh",
                "model": {"name": str(tiny_model), "dropout": 0.0},
                "compute": {"device": "cpu"},
                "max_steps": 4,
                "batch": {"global_size": 8},
                "tracker": {"names": []},
                "log": {"every_steps": 1},
                "strategy": {"name": "fsdp"},
                "checkpoint": {"store": str(tmp_path / store)},
                "launch": {"threads": 1, "num_processes": 2, **launch},
            },
        )
        for store, launch in (("store", several), ("own-store", {}))
    ]
    job = lay(tmp_path / "a", config=configs[0], **data)
    words = cable.inside(0, [sys.executable, str(ROOT / "tests" / "helpers" / "machines_apart.py"), str(job)])
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "SKYTUNE_HOME": str(tmp_path / "a"),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)
    record = (job / "outputs" / "logs" / "node-1.log").read_text()
    assert done.returncode == 0, done.stdout + record
    assert "2 x cpu" in done.stdout
    assert record.splitlines()[-1] == "the run is done; node 0 has the results"
    assert (job / "outputs" / "logs" / "rank-1.log").read_text(), "by rsync"
    assert json.loads((job / "outputs" / "result.json").read_text())["strategy"] == "fsdp"
    assert not subprocess.run(["ip", "netns", "pids", cable.names[1]], capture_output=True, text=True).stdout.split()[
        1:
    ]

    alone = lay(tmp_path / "alone", config=configs[1], **data)
    words = [sys.executable, str(ROOT / "tests" / "helpers" / "machines_apart.py"), str(alone)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stdout
    curves = [_losses(folder) for folder in (job, alone)]
    assert len(curves[1]) == 4 and curves[0] == pytest.approx(curves[1], abs=1e-6)
    ours, reference = (load_file(folder / "outputs" / "model" / "model.safetensors") for folder in (job, alone))
    assert ours.keys() == reference.keys()
    assert max(float(abs(ours[name] - reference[name]).max()) for name in reference) <= 1e-6


def _losses(job: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (job / "outputs" / "history.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line and "step" in line}
