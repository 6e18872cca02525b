"""The end of a run on several machines in which there was nothing to train."""

import contextlib
import os
import socket
import time

from ..config import UserError
from .channel import Channel, Closed
from .gathering import HANDSHAKE_SECONDS, TOKEN, gathered
from .nodes import PORT, Nodes

DISMISS_SECONDS = 15.0
"""How long node 0 has the others be told that there was nothing to train."""


def dismiss(nodes: Nodes) -> None:
    """Tell the other machines that nothing is left to do, where this process has called none: a run that was cached, or
    that failed before it came to train. They would wait for node 0 to the end of their time.

    Only machines that know the token from their environment: no other one can be waiting yet.
    """
    token = os.environ.get(TOKEN)
    if nodes.count == 1 or nodes.rank or not token or gathered.is_set():
        return
    until, left = time.monotonic() + DISMISS_SECONDS, nodes.count - 1
    # Whatever goes wrong here: it may be that a run has failed just now, and it must not take that error's place.
    with contextlib.suppress(Exception), socket.create_server(("", nodes.port or PORT)) as door:
        while left and time.monotonic() < until:
            door.settimeout(max(0.1, until - time.monotonic()))
            channel = Channel(door.accept()[0], HANDSHAKE_SECONDS)
            try:
                channel.challenge(token)
                channel.expect("hello")
                channel.send("end", status="nothing")
                left -= 1
            except (Closed, UserError):
                pass
            finally:
                channel.close()
