"""The instance metadata service, version 2 only: what a machine learns about itself at http://169.254.169.254.

A token first (PUT), then documents (GET), among them the role's credentials and, once a preemption was announced, the
notice. Who asks is known by its address, as on EC2.
"""

import http.server
import json
import secrets
import socketserver
import threading
from collections.abc import Callable
from typing import Any

from .account import ROLE, ROLE_KEY
from .router import METADATA


def documents(machine: dict[str, Any]) -> dict[str, Any]:
    """Return what a machine may read: path -> text, or an object to be sent as JSON."""
    found: dict[str, Any] = {
        "meta-data/instance-id": machine["id"],
        "meta-data/instance-type": machine["type"],
        "meta-data/instance-life-cycle": "spot" if machine["spot"] else "on-demand",
        "meta-data/local-ipv4": machine["private_ip"],
        "meta-data/public-ipv4": machine["public_ip"] or "",
        "meta-data/local-hostname": machine["hostname"],
        "meta-data/hostname": machine["hostname"],
        "meta-data/placement/availability-zone": machine["zone"],
        "meta-data/placement/region": machine["region"],
        "meta-data/iam/security-credentials": ROLE,
        f"meta-data/iam/security-credentials/{ROLE}": {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "AccessKeyId": ROLE_KEY,
            "SecretAccessKey": "farm-role-secret",
            "Token": "farm-role-token",
            "LastUpdated": "2020-01-01T00:00:00Z",
            "Expiration": "2099-01-01T00:00:00Z",
        },
        "dynamic/instance-identity/document": {
            "accountId": "123456789012",
            "instanceId": machine["id"],
            "instanceType": machine["type"],
            "region": machine["region"],
            "availabilityZone": machine["zone"],
            "privateIp": machine["private_ip"],
        },
    }
    if machine["notice"]:
        found["meta-data/spot/instance-action"] = machine["notice"]
        found["meta-data/spot/termination-time"] = machine["notice"]["time"]
    return found


def serve(find: Callable[[str], dict[str, Any] | None]) -> None:
    """Answer at the metadata address in threads; `find` returns the machine with an address."""
    tokens: set[str] = set()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            if self.path != "/latest/api/token" or not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds"):
                return self._say(400, "")
            tokens.add(token := secrets.token_urlsafe(24))
            self._say(200, token)

        def do_GET(self) -> None:
            machine = find(self.client_address[0])
            if self.headers.get("X-aws-ec2-metadata-token") not in tokens:
                return self._say(401, "Unauthorized")
            text = documents(machine).get(self.path.removeprefix("/latest/").rstrip("/")) if machine else None
            if text is None:
                return self._say(404, "Not Found")
            self._say(200, text if isinstance(text, str) else json.dumps(text))

        def _say(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Nothing: tests ask for what was called elsewhere."""

    server = socketserver.ThreadingTCPServer((METADATA, 80), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True, name="metadata").start()
