"""Standard output that outlives its reader."""

import errno
import io
import os
import sys
from typing import cast


class _Lasting(io.FileIO):
    """Writes into nothing once nobody reads any more (`| head`, a terminal that was closed): the work goes on."""

    def write(self, data: "bytes | bytearray | memoryview", /) -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(memoryview(data).cast("B"))


def make_lasting() -> None:
    """Have stdout and stderr take every character, in whatever encoding, and survive being closed, now or later."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:  # closed before this process began: the next file would get its number
            nothing = os.open(os.devnull, os.O_WRONLY)
            if nothing != number:
                os.dup2(nothing, number)
        lasting = io.TextIOWrapper(
            io.BufferedWriter(cast("io.RawIOBase", _Lasting(number, "wb", closefd=False))),
            encoding=getattr(stream, "encoding", None) or "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, name, lasting)
        setattr(sys, f"__{name}__", lasting)
