"""What SkyPilot is asked to run: the task's setup and run scripts, its environment and its secrets."""

import os
import shlex
import sys
from typing import Any

from ...config import ComputeConfig, RecoveryMode, RunConfig, to_dict
from ...config.secrets import looks_secret, named
from .machine import resources

WORKDIR = "~/sky_workdir"
"""Where SkyPilot puts what is uploaded."""

JOB = f"{WORKDIR}/job"
"""The job directory on every machine."""

PYTHON = "$HOME/skytune-env/bin/python"
SETUP_MINUTES = 30
GRACE_SECONDS = 120

HANDED_ON = ("HF_ENDPOINT", "WANDB_BASE_URL", "WANDB_ENTITY", "WANDB_PROJECT", "WANDB_MODE", "HF_HUB_OFFLINE")
"""Variables of this process that say where services are."""

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
"""Secrets of this process that workers may need. Those of the cloud are not among them: machines have a role."""

# What it says is kept on the machine too: of a setup that fails, SkyPilot may not show the last lines, which say why.
SETUP = """\
set -eo pipefail
cd {workdir}
mkdir -p {logs}
{{
export PATH="$HOME/.local/bin:$PATH"
command -v uv >/dev/null || curl -LsSf https://astral.sh/uv/install.sh | sh
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
    {python} code/skytune/launch/start.py skytune.launch.skypilot.node "$PWD/job"
"""


def setup_script() -> str:
    """Return the script that prepares a machine: a Python like this one and the pinned packages, by uv."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return SETUP.format(workdir=WORKDIR, python=PYTHON, version=version, minutes=SETUP_MINUTES, logs="job/outputs/logs")


def run_script(compute: ComputeConfig) -> str:
    """Return the script that every machine runs; it ends by itself after `max_hours` and a little."""
    seconds = round((compute.max_hours or 24.0) * 3600) + 2 * GRACE_SECONDS
    return RUN.format(workdir=WORKDIR, python=PYTHON, seconds=seconds, grace=GRACE_SECONDS)


def environment(
    config: RunConfig, compute: ComputeConfig, *, launch_id: str, processes: int, gpus: int, on_aws: bool
) -> dict[str, str]:
    """Return the variables that `node` and the workers read.

    Args:
        launch_id: of all attempts together, so that the next one takes over the checkpoints of the one before at once.
        processes: on every machine.
        gpus: that every machine must have.
        on_aws: whether machines have EC2's metadata service, which announces that a spot machine is taken away.
    """
    found = {
        "SKYTUNE_LAUNCH": launch_id,
        "SKYTUNE_PROCESSES_EACH": str(processes),
        "SKYTUNE_GPUS_EACH": str(gpus),
        "SKYTUNE_MAX_SECONDS": str(round((compute.max_hours or 24.0) * 3600)),
    }
    if compute.recovery.mode is RecoveryMode.managed:
        found["SKYTUNE_MANAGED"] = "1"
    if on_aws:
        found["SKYTUNE_IMDS"] = "http://169.254.169.254"
    return {**found, **{name: os.environ[name] for name in HANDED_ON if os.environ.get(name)}}


def secrets(config: RunConfig) -> dict[str, str]:
    """Return what workers must know and nobody else may: SkyPilot hands it on without showing it."""
    own = [name for name in os.environ if name.startswith("SKYTUNE_") and looks_secret(name)]
    return {
        name: os.environ[name]
        for name in dict.fromkeys([*SECRETS, *own, *named(to_dict(config))])
        if os.environ.get(name)
    }


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
