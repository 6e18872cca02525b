"""One line for each thing that was looked at: what was done to it, and what there is to know."""

from typing import NamedTuple


class Done(NamedTuple):
    """What became of one thing: `verb` is made, found, changed, kept, removed or absent, `kind` bucket, role, ..."""

    verb: str
    kind: str
    name: str
    about: str = ""

    @property
    def changed(self) -> bool:
        """Whether anything is other than before."""
        return self.verb in ("made", "changed", "removed")

    def __str__(self) -> str:
        line = f"  {self.verb:<8} {self.kind:<11} {self.name}"
        return f"{line}  ({self.about})" if self.about else line
