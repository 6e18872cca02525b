"""S3's real protocol on a socket of this process that can be made to fail: Moto's server behind a little door."""

import logging
import os
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

XML = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code} by the test</Message></Error>'

Fault = Callable[[str, str], tuple[int, str] | None]
"""Given method and path: answers (status, code), waits, or lets pass (None)."""


class S3:
    """`fault(method, path)` may answer (status, code), wait, or let pass (None)."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        self.fault: Fault | None = None
        self.locks = True
        """Whether conditional writes are known here; some stores that speak S3 answer 501."""
        self.lock = threading.Lock()
        self.calls: list[tuple[str, str]] = []
        self.app = DomainDispatcherApplication(create_backend_app)
        self.server = make_server(address, 0, self.answer, threaded=True, request_handler=MotoRequestHandler)
        self.url = f"http://{address}:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def env(self) -> dict[str, str]:
        """The environment in which clients find it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def answer(self, environ: dict[str, Any], start_response: Any) -> Any:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        self.calls.append((method, path))
        fault = self.fault(method, path) if self.fault else None
        conditional = "HTTP_IF_MATCH" in environ or "HTTP_IF_NONE_MATCH" in environ
        if conditional and not self.locks:
            fault = 501, "NotImplemented"
        if fault is None and conditional:
            with self.lock:  # moto looks and writes in two moves, S3 in one
                return self.app(environ, start_response)
        if fault is None:
            return self.app(environ, start_response)
        length = int(environ.get("CONTENT_LENGTH") or 0)
        environ["wsgi.input"].read(length)
        body = b"" if method == "HEAD" else XML.format(code=fault[1]).encode()
        start_response(f"{fault[0]} fault", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
        return [body]

    @cached_property
    def client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )

    @cached_property
    def system(self) -> Any:
        """One client for many tests: making one takes a third of a second."""
        from skytune.checkpoint.backends.urls import open_backend

        return open_backend("s3://any").system

    def objects(self, bucket: str, prefix: str = "") -> list[str]:
        found = self.client.list_objects_v2(Bucket=bucket, Prefix=prefix)
        assert not found["IsTruncated"]
        return [entry["Key"] for entry in found.get("Contents", [])]
