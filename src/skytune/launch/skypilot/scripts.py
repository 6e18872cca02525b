"""What SkyPilot is asked to run: the task's setup and run scripts, its environment and its secrets."""

import shlex
import sys
from typing import Any

from ...config import ComputeConfig

WORKDIR = "~/sky_workdir"
"""Where SkyPilot puts what is uploaded."""

JOB = f"{WORKDIR}/job"
"""The job directory on every machine."""

PYTHON = "$HOME/skytune-env/bin/python"
SETUP_MINUTES = 30
GRACE_SECONDS = 120

UV = "0.13.9"
UV_WHEELS = {
    "x86_64": (
        "3d/aa/26d64642d808de4a652579ef950d7cd2d37f080a8babf9c67c6b75fc4c3f",
        "manylinux_2_17_x86_64.manylinux2014_x86_64",
        "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
    ),
    "aarch64": (
        "57/15/94b6cd62ac3ff6550288328e8035288875197cbc183f51554b266a69877b",
        "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
        "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
    ),
}
"""By a machine's kind: folder and name of the wheel on PyPI that holds uv, and its SHA-256. Of the Pythons that uv
fetches it knows the hashes itself."""

# What it says is kept on the machine too: of a setup that fails, SkyPilot may not show the last lines, which say why.
SETUP = """\
set -eo pipefail
cd {workdir}
mkdir -p {logs}
{{
export PATH="$HOME/skytune-uv:$HOME/.local/bin:$PATH"
if [ "$(uv --version 2>/dev/null | cut -d' ' -f2)" != {uv} ]; then
    case "$(uname -m)" in
{wheels}
        *) echo "no uv for $(uname -m)"; exit 1 ;;
    esac
    curl -LsSf -o uv.whl "https://files.pythonhosted.org/packages/$folder/uv-{uv}-py3-none-$wheel.whl"
    echo "$hash  uv.whl" | sha256sum --check --quiet
    python3 -m zipfile -e uv.whl uv-wheel
    install -D "uv-wheel/uv-{uv}.data/scripts/uv" "$HOME/skytune-uv/uv"
fi
[ -x {python} ] || uv venv --quiet --python {version} "$HOME/skytune-env"
# What this very list of packages was installed for already stays as it is.
if ! cmp -s requirements.txt "$HOME/skytune-env/requirements.txt"; then
    VIRTUAL_ENV="$HOME/skytune-env" timeout {minutes}m \\
        uv pip install --quiet --constraint constraints.txt --requirement requirements.txt
    cp requirements.txt "$HOME/skytune-env/requirements.txt"
fi
}} 2>&1 | tee "{logs}/setup-${{SKYPILOT_SETUP_NODE_RANK:-0}}.log"
"""

# Without `set -e` SkyPilot reports a job that failed as one that succeeded.
RUN = """\
set -e
cd {workdir}
exec timeout --signal=TERM --kill-after={grace} {seconds} \\
    {python} code/skytune/launch/bootstrap.py skytune.launch.skypilot.node "$PWD/job"
"""


def setup_script() -> str:
    """Return the script that prepares a machine: a Python like this one and the pinned packages, by uv."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    wheels = "\n".join(
        f"        {kind}) folder={folder} wheel={name} hash={digest} ;;"
        for kind, (folder, name, digest) in UV_WHEELS.items()
    )
    return SETUP.format(
        workdir=WORKDIR,
        python=PYTHON,
        version=version,
        minutes=SETUP_MINUTES,
        logs="job/outputs/logs",
        uv=UV,
        wheels=wheels,
    )


def run_script(compute: ComputeConfig) -> str:
    """Return the script that every machine runs; it ends by itself after `max_hours` and a little."""
    seconds = round((compute.max_hours or 24.0) * 3600) + 2 * GRACE_SECONDS
    return RUN.format(workdir=WORKDIR, python=PYTHON, seconds=seconds, grace=GRACE_SECONDS)


def task(
    name: str,
    workdir: str,
    compute: ComputeConfig,
    envs: dict[str, str],
    hidden: dict[str, str],
    *,
    use_spot: bool | None = None,
) -> dict[str, Any]:
    """Return a SkyPilot task as plain values, for `sky.Task.from_yaml_config`."""
    found: dict[str, Any] = {
        "name": name,
        "workdir": workdir,
        "num_nodes": compute.num_nodes or 1,
        "resources": resources(compute, use_spot=use_spot),
        "setup": setup_script(),
        "run": run_script(compute),
        "envs": envs,
    }
    return {**found, "secrets": hidden} if hidden else found


def shell(*words: str) -> str:
    """Return words as a command for a machine's shell, which replaces `~`."""
    return " ".join(word if word.startswith("~/") else shlex.quote(word) for word in words)


def resources(compute: ComputeConfig, *, use_spot: bool | None = None) -> dict[str, Any]:
    """Return the machine as the `resources` of a SkyPilot task.

    Args:
        use_spot: instead of the configuration's.
    """
    cloud, _, rest = (compute.infra or "").partition("/")
    region, _, zone = rest.partition("/")
    region, zone = compute.region or region, compute.zone or zone
    if region or zone:
        cloud = cloud or "*"
    infra = "/".join(part for part in (cloud, region or ("*" if zone else ""), zone) if part)
    found: dict[str, Any] = {
        "infra": infra or None,
        "accelerators": compute.accelerators,
        "instance_type": compute.instance_type,
        "cpus": None if compute.cpus is None else str(compute.cpus),
        "memory": None if compute.memory is None else str(compute.memory),
        "use_spot": bool(compute.use_spot) if use_spot is None else use_spot,
        "disk_size": compute.disk_size,
        "image_id": compute.image_id,
    }
    return {**{key: value for key, value in found.items() if value is not None}, **compute.resources}
