"""Another machine of a run, as node 0 knows it."""

from dataclasses import dataclass, field
from pathlib import Path

from ..job import JobDir
from .channel import Channel
from .own_modules import own_modules


@dataclass
class Member:
    """Another machine."""

    rank: int
    name: str
    channel: Channel
    ready: bool = False
    code: int | None = None
    """How its workers ended."""

    lost: str = ""
    """Why it is not heard of any more."""

    tail: list[str] = field(default_factory=list)

    def hand_over(self, job: JobDir, *, nodes: int, each: int, nonce: str) -> None:
        """Give it its part, with the inputs where it does not see node 0's folder; return when it has them.

        Args:
            nodes: all machines.
            each: processes of every machine.
            nonce: what stands in the file `.nodes` of the job directory.

        Raises:
            Closed: it is gone.
        """
        held = job.job
        self.channel.send(
            "welcome", rank=self.rank, nodes=nodes, each=each, run_key=held.run_key, folder=str(job.root), nonce=nonce
        )
        if not self.channel.expect("found")["shared"]:
            self.channel.send_folder(job.root, ["job.json", "inputs"])
            with own_modules(held.config, [Path(path) for path in held.paths]) as (folder, tops):
                self.channel.send_folder(folder, tops)
        self.channel.expect("ready")
