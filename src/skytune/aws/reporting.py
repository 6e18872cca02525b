"""One line for each thing that was looked at: what was done to it, and what there is to know."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """What became of one thing."""

    verb: str
    """made, found, changed, kept, removed, absent."""

    kind: str
    """bucket, role, ..."""

    name: str

    about: str = ""

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return self.verb in ("made", "changed", "removed")

    def __str__(self) -> str:
        line = f"  {self.verb:<8} {self.kind:<11} {self.name}"
        return f"{line}  ({self.about})" if self.about else line
