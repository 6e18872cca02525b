"""What all machines of a run read and write: the folder in which runs lie, or a bucket.

<share>/.nodes/<meeting>/N.json    what machine N says of itself (`presence`)
<share>/runs/<run key>/            in a folder, the job itself
s3://.../.nodes/<meeting>/         in a bucket, `job.json` and `inputs.json` too; the rest as `s3_transfer` says
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from ...checkpoint.backends.urls import open_backend
from ...config import RunConfig
from ...config.folders import home
from ...job import JobDir
from ..compatibility import own_address
from ..remote.s3_transfer import INPUTS, S3Transfer
from ..run_dir import slug
from .presence import Mailbox
from .topology import PORT, Nodes

ATTEMPTS = ("SLURM_JOB_ID", "SLURM_STEP_ID", "PET_RDZV_ID", "TORCHELASTIC_RUN_ID")
"""Variables by which an engine tells one of its jobs from another."""


class Share(Mailbox):
    """The share, as the machines of one run use it."""

    def __init__(self, config: RunConfig, nodes: Nodes) -> None:
        """Take `launch.share`, else the bucket of the checkpoints, else SKYTUNE_HOME; a folder becomes SKYTUNE_HOME."""
        store = config.checkpoint.store or ""
        url = config.launch.share or (store if store.startswith("s3://") else str(home()))
        self.private = url.startswith("s3://")
        if not self.private:
            os.environ["SKYTUNE_HOME"] = url = str(Path(url.removeprefix("file://")).expanduser().absolute())
        self.url, self.where = url.rstrip("/"), f"launch.share={url}"
        words = [nodes.port or PORT, *(os.environ[name] for name in ATTEMPTS if name in os.environ)]
        self._folder = f".nodes/{slug('-'.join(map(str, [*words, nodes.address or own_address()])))}"
        self._backend = open_backend(self.url, patience=10.0)

    def write(self, rank: int, data: bytes) -> None:
        self._backend.write(f"{self._folder}/{rank}.json", data)

    def read(self, rank: int) -> bytes | None:
        with suppress(FileNotFoundError):
            return self._backend.read(f"{self._folder}/{rank}.json")
        return None

    def send(self, job: JobDir) -> None:
        if self.private:
            with tempfile.TemporaryDirectory(prefix="skytune-") as temporary:
                listing = Path(temporary, INPUTS)
                self._transfer(job).upload_inputs(job.inputs, listing)
                for path in (listing, job.existing()):
                    self._backend.write(f"{self._folder}/{path.name}", path.read_bytes())
            self._transfer(job).delete_outputs()

    def receive(self, job: JobDir) -> None:
        for name in ("job.json", INPUTS):
            (job.root / name).write_bytes(self._backend.read(f"{self._folder}/{name}"))
        self._transfer(job).download_inputs(job)

    def send_logs(self, job: JobDir, rank: int) -> None:
        if self.private:
            self._transfer(job).upload_outputs(job, rank, None)

    def receive_logs(self, job: JobDir, each: int) -> None:
        if self.private:
            self._transfer(job).download_outputs(job)
            self._transfer(job).delete_outputs()

    def clear(self, heard: bool) -> None:
        """See `Mailbox`; a word stays where somebody may still look for it."""
        with suppress(Exception):
            if heard:
                self._backend.remove(self._folder)

    def _transfer(self, job: JobDir) -> S3Transfer:
        return S3Transfer(self.url, job.root.name, retry_seconds=30.0)
