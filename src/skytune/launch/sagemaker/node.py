"""On every machine of a training job: which of them it is, when its time is up, and what SageMaker is left.

    python bootstrap.py skytune.launch.sagemaker.node JOBDIR

SIGTERM (spot interruption, StopTrainingJob, MaxRuntime; SIGKILL comes 120 s later) becomes the file by which launchers
ask workers to save. A while before MaxRuntime this machine does so itself, and notes why.
"""

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

from ...config import LaunchConfig
from ...distributed.preemption import FLAG_FILE
from ...job import JobDir
from ..multinode.topology import Nodes, nodes_of
from ..remote.node import take_part
from ..remote.outcome import TIME_UP


def main(argv: list[str] | None = None) -> int:
    """Run this machine's part of the job; return the exit code."""
    (folder,) = sys.argv[1:] if argv is None else argv
    job, root = JobDir(folder), Path(os.environ.get("SKYTUNE_OPT_ML", "/opt/ml"))
    nodes = this_node(root)
    read_secrets(os.environ.get("SKYTUNE_SECRET"))
    watch_time(job)
    code = take_part(job, nodes, flag=job.root / FLAG_FILE)
    if nodes.rank == 0 and (job.read_result() or {}).get("status") == "completed":
        # The final model and nothing else: SageMaker uploads it as model.tar.gz. Checkpoints go to the store.
        shutil.copytree(job.model, root / "model", dirs_exist_ok=True)
    return code


def this_node(root: Path) -> Nodes:
    """Return which machine this is, by SageMaker's `resourceconfig.json`; the workers are told its network, too."""
    found = json.loads((root / "input" / "config" / "resourceconfig.json").read_text(encoding="utf-8"))
    os.environ |= {"SM_HOSTS": json.dumps(found["hosts"]), "SM_CURRENT_HOST": found["current_host"]}
    if name := found.get("network_interface_name"):
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            os.environ.setdefault(variable, name)
    return nodes_of(LaunchConfig(), {name: os.environ[name] for name in ("SM_HOSTS", "SM_CURRENT_HOST")})


def read_secrets(name: str | None) -> None:
    """Put what only workers may know into the environment, from Secrets Manager, which the job's role may ask."""
    if not name:
        return
    import botocore.session  # s3fs brings it

    session = botocore.session.get_session()
    client = session.create_client("secretsmanager", region_name=os.environ.get("AWS_REGION"))
    os.environ |= json.loads(client.get_secret_value(SecretId=name)["SecretString"])


def watch_time(job: JobDir) -> None:
    """Ask the workers to save and end a while before SageMaker ends the job."""
    left = float(os.environ["SKYTUNE_MAX_SECONDS"]) - float(os.environ["SKYTUNE_SAVE_SECONDS"])
    left -= time.time() - float(os.environ["SKYTUNE_BEGAN"])

    def up() -> None:
        job.logs.mkdir(parents=True, exist_ok=True)
        (job.logs / TIME_UP).touch()
        (job.root / FLAG_FILE).touch()
        print("the job's time is up soon (sagemaker.max_hours): saving, the next job goes on", flush=True)

    timer = threading.Timer(max(0.0, left), up)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
