"""A connection between two machines of a run: JSON messages, and folders as tar streams.

Both sides first show that they know the run's token (HMAC; the token itself is never sent). Nothing is encrypted, as
nothing of torch's own traffic is: machines that train together share a private network.

Messages are read as JSON alone, and a tar stream can write only inside the folder that it is unpacked into.
"""

import contextlib
import hmac
import io
import json
import os
import socket
import struct
import tarfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..config import UserError

GREETING = "skytune nodes 1"
"""The protocol and its version."""

LARGEST = 4 << 20
"""Bytes of one message; before the token was shown, `SMALL`."""

SMALL = 1 << 10
CHUNK = 1 << 18


class Closed(ConnectionError):
    """The other side is gone, silent for too long, or speaks another language."""


class Channel:
    """One connection. Sending is safe from several threads; one thread at a time receives."""

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        """Take over an open connection.

        Args:
            timeout: seconds without a byte after which the other side counts as gone.
        """
        self._socket, self._sending = connection, threading.Lock()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(timeout)

    @property
    def here(self) -> str:
        """The address by which the other side sees this machine."""
        return str(self._socket.getsockname()[0])

    def patience(self, timeout: float) -> None:
        """Change the timeout."""
        self._socket.settimeout(timeout)

    def send(self, kind: str, **values: Any) -> None:
        """Send a message.

        Raises:
            Closed: the other side is gone.
        """
        data = json.dumps({"kind": kind, **values}).encode()
        with self._sending, _closed():
            self._socket.sendall(struct.pack(">I", len(data)) + data)

    def receive(self, largest: int = LARGEST) -> dict[str, Any]:
        """Wait for a message and return it.

        Raises:
            Closed: the other side is gone, or sent none within the timeout.
        """
        size = self._size()
        if size > largest:
            raise Closed("a message that is none")
        try:
            found = json.loads(self._bytes(size))
        except ValueError as error:
            raise Closed("a message that is none") from error
        if not isinstance(found, dict) or not isinstance(found.get("kind"), str):
            raise Closed("a message that is none")
        return found

    def expect(self, *kinds: str) -> dict[str, Any]:
        """Wait for a message of one of these kinds; pulses are passed over.

        Raises:
            UserError: the other side refuses, and says why.
            Closed: see `receive`.
        """
        while True:
            found = self.receive()
            if found["kind"] in kinds:
                return found
            if found["kind"] == "refused":
                raise UserError(str(found["reason"]))
            if found["kind"] != "pulse":
                raise Closed(f"'{found['kind']}' instead of {' or '.join(kinds)}")

    def send_folder(self, root: Path, names: Iterable[str]) -> None:
        """Send files and folders below `root` by their relative names; links are sent as what they point to."""
        with self._sending, _closed():
            stream = _Chunks(self._socket.sendall)
            with tarfile.open(fileobj=stream, mode="w|", dereference=True) as tar:
                for name in names:
                    if (root / name).exists():
                        tar.add(root / name, arcname=name)
            self._socket.sendall(struct.pack(">I", 0))

    def receive_folder(self, root: Path) -> None:
        """Unpack what `send_folder` sent below `root`.

        Raises:
            Closed: the other side is gone, or sent a file that would lie elsewhere.
        """
        root.mkdir(parents=True, exist_ok=True)
        stream = _Stream(self._size, self._bytes)
        try:
            with tarfile.open(fileobj=io.BufferedReader(stream, CHUNK), mode="r|") as tar:
                tar.extractall(root, filter="data")
        except tarfile.TarError as error:
            raise Closed(f"a folder that is none: {error}") from error
        stream.skip()

    def prove(self, token: str) -> None:
        """As the one who came: show that this side knows the token, and see that the other does.

        Raises:
            UserError: the other side is no node 0, or has another token.
        """
        nonce = os.urandom(16).hex()
        try:
            greeting = self.receive(SMALL)
            if greeting["kind"] != GREETING:
                raise UserError("something else than a node 0 of this version answers there")
            theirs = str(greeting["nonce"])
            self.send("proof", nonce=nonce, proof=_proof(token, "came", theirs, nonce))
            answer = self.receive(SMALL)
        except (Closed, KeyError) as error:
            raise UserError(
                f"something else than a node 0 answers there ({error}), or SKYTUNE_JOIN_TOKEN is not its"
            ) from None
        if not hmac.compare_digest(str(answer.get("proof")), _proof(token, "waited", theirs, nonce)):
            raise UserError("SKYTUNE_JOIN_TOKEN is not that of the run that waits there")

    def challenge(self, token: str) -> None:
        """As the one who waited: the same.

        Raises:
            Closed: the other side does not know the token.
        """
        nonce = os.urandom(16).hex()
        self.send(GREETING, nonce=nonce)
        answer = self.receive(SMALL)
        theirs = str(answer.get("nonce"))
        if not hmac.compare_digest(str(answer.get("proof")), _proof(token, "came", nonce, theirs)):
            raise Closed("another token")
        self.send("proof", proof=_proof(token, "waited", nonce, theirs))

    def close(self) -> None:
        """End the connection; whoever waits for a message stops waiting."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _size(self) -> int:
        return int(struct.unpack(">I", self._bytes(4))[0])

    def _bytes(self, count: int) -> bytes:
        found = bytearray()
        with _closed():
            while len(found) < count:
                part = self._socket.recv(min(count - len(found), CHUNK))
                if not part:
                    raise Closed("the connection was closed")
                found += part
        return bytes(found)


def _proof(token: str, who: str, first: str, second: str) -> str:
    return hmac.new(token.encode(), f"{who}:{first}:{second}".encode(), "sha256").hexdigest()


@contextlib.contextmanager
def _closed() -> Any:
    """Turn the operating system's errors into `Closed`."""
    try:
        yield
    except TimeoutError as error:
        raise Closed("silence") from error
    except Closed:
        raise
    except OSError as error:
        raise Closed(error.strerror or str(error)) from error


class _Chunks(io.RawIOBase):
    """A file to write to: every part goes out after its length."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, data: Any) -> int:
        """Send some bytes."""
        part = bytes(data)
        if part:
            self._send(struct.pack(">I", len(part)) + part)
        return len(part)


class _Stream(io.RawIOBase):
    """A file to read from: what `_Chunks` sent, up to an empty part."""

    def __init__(self, size: Callable[[], int], read: Callable[[int], bytes]) -> None:
        self._size, self._read, self._left, self._ended = size, read, 0, False

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; 0 at the end."""
        if not self._left and not self._ended:
            self._left = self._size()
            self._ended = not self._left
        part = self._read(min(len(buffer), self._left)) if self._left else b""
        buffer[: len(part)] = part
        self._left -= len(part)
        return len(part)

    def skip(self) -> None:
        """Read up to the end: tar pads its streams."""
        while self.readinto(bytearray(CHUNK)):
            pass
