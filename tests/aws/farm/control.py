"""How the test talks to its farm: one JSON line a call over a Unix socket in the farm's folder.

A path, unlike a port, is reached from outside of the farm's network namespace.
"""

import json
import os
import socket
import socketserver
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SOCKET = "control.sock"


class FarmError(Exception):
    """The farm could not do what it was asked for; the message says why."""


def serve(folder: Path, methods: Mapping[str, Any]) -> None:
    """Answer calls of `methods` (name -> function of keyword arguments) in threads, as long as the process lives."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked = json.loads(self.rfile.readline())
            try:
                answer = {"result": methods[asked["method"]](**asked["arguments"])}
            except FarmError as error:
                answer = {"error": str(error)}
            except Exception as error:
                answer = {"error": f"{asked['method']}: {type(error).__name__}: {error}"}
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    with _short(folder) as path:
        Path(path).unlink(missing_ok=True)
        server = socketserver.ThreadingUnixStreamServer(path, Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True, name="control").start()


def call(folder: Path, method: str, timeout: float = 60, **arguments: Any) -> Any:
    """Call a method of the farm in `folder`; raise FarmError if it refuses or is not there."""
    with socket.socket(socket.AF_UNIX) as connection, _short(folder) as path:
        connection.settimeout(timeout)
        try:
            connection.connect(path)
            connection.sendall(json.dumps({"method": method, "arguments": arguments}).encode() + b"\n")
            answer = json.loads(connection.makefile().readline() or "null")
        except OSError as error:
            raise FarmError(f"the farm in {folder} does not answer: {error}") from error
    if answer is None:
        raise FarmError(f"the farm in {folder} ended while it was asked for {method}")
    if "error" in answer:
        raise FarmError(answer["error"])
    return answer["result"]


class Asking:
    """Something that has a farm's folder and calls its service."""

    folder: Path

    def call(self, method: str, **arguments: Any) -> Any:
        """Call the farm's service; raise FarmError if it refuses or is not there."""
        return call(self.folder, method, **arguments)


class _short:
    """The socket's path by way of an open folder: the kernel allows 107 characters, and caches lie deep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> str:
        try:
            self.descriptor = os.open(self.folder, os.O_PATH)
        except OSError as error:
            raise FarmError(f"no farm in {self.folder}: {error.strerror}") from error
        return f"/proc/self/fd/{self.descriptor}/{SOCKET}"

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
