"""What moto does not know of AWS, answered at the HTTP edge: quotas, the price list, the spot market, expired keys.

Everything else goes on to moto's server as it came.
"""

import http.client
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

QUOTAS = {
    "L-1216C47A": ("Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances", 256),
    "L-34B43A08": ("All Standard (A, C, D, H, I, M, R, T, Z) Spot Instance Requests", 32),
    "L-DB2E81BA": ("Running On-Demand G and VT instances", 48),
    "L-3819A6DF": ("All G and VT Spot Instance Requests", 0),
    "L-417A185B": ("Running On-Demand P instances", 0),
    "L-7212CCBC": ("All P4, P3 and P2 Spot Instance Requests", 96),
    "L-C4BD4855": ("All P5 Spot Instance Requests", 192),
    "L-0263D0A3": ("EC2-VPC Elastic IPs", 5),
}
PRICES = {"g5.12xlarge": 5.672, "m6i.2xlarge": 0.384}
SPOT = {"g5.12xlarge": {"us-east-1a": 2.41, "us-east-1b": 2.30, "us-east-1c": 2.95}}

S3_ACTIONS = {
    "HEAD ": "ListBucket",
    "GET list-type": "ListBucket",
    "PUT ": "CreateBucket",
    "DELETE ": "DeleteBucket",
    "GET tagging": "GetBucketTagging",
    "PUT tagging": "PutBucketTagging",
    "GET publicAccessBlock": "GetBucketPublicAccessBlock",
    "PUT publicAccessBlock": "PutBucketPublicAccessBlock",
    "GET encryption": "GetEncryptionConfiguration",
    "PUT encryption": "PutEncryptionConfiguration",
    "GET policy": "GetBucketPolicy",
    "PUT policy": "PutBucketPolicy",
    "GET lifecycle": "GetLifecycleConfiguration",
    "PUT lifecycle": "PutLifecycleConfiguration",
    "GET versions": "ListBucketVersions",
    "GET uploads": "ListBucketMultipartUploads",
    "POST delete": "DeleteObjectVersion",
    "POST uploads": "PutObject",
    "DELETE uploadId": "AbortMultipartUpload",
}
"""What IAM calls a request to S3: by its method and first parameter."""

EXPIRED = """<ErrorResponse><Error><Type>Sender</Type><Code>ExpiredToken</Code>
<Message>The security token included in the request is expired</Message></Error></ErrorResponse>"""


class Edge:
    """A server before moto's."""

    def __init__(self, moto: str) -> None:
        self.moto = moto
        self.expired = self.no_prices = False
        self.slow: dict[str, float] = {}
        """Seconds by which the answer to a call is late."""

        self.calls: list[str] = []
        self.actions: set[str] = set()
        """What IAM calls them."""
        self.unguarded: set[str] = set()
        """Requests to S3 that a bucket of another account would answer."""
        self.policies: dict[str, bytes] = {}
        """Of buckets."""
        self.foreign: set[str] = set()
        """Buckets that are another account's."""

        edge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, headers, content = edge.answer(self.command, self.path, dict(self.headers), body)
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection", "server", "date"):
                        self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else content)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = answer

            def log_message(self, *words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def heal(self) -> None:
        self.expired = self.no_prices = False
        self.slow.clear()
        self.calls.clear()
        self.actions.clear()
        self.unguarded.clear()
        self.foreign.clear()
        self.policies.clear()

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        target = headers.get("X-Amz-Target", "").rpartition(".")[2]
        form = parse_qs(body.decode(errors="replace")) if "form" in headers.get("Content-Type", "") else {}
        call = target or form.get("Action", [f"{method} {path}"])[0]
        self.calls.append(call)
        self.actions.add(self._action(method, path, call, headers.get("Authorization", "")))
        time.sleep(self.slow.get(call, 0.0))
        owner = {name.lower(): value for name, value in headers.items()}.get("x-amz-expected-bucket-owner")
        if call.startswith(f"{method} /") and not owner:
            self.unguarded.add(call)
        if owner and path.split("?")[0].split("/")[1] in self.foreign:
            return 403, {"Content-Type": "text/xml"}, b"<Error><Code>AccessDenied</Code></Error>"
        if self.expired:
            return 403, {"Content-Type": "text/xml"}, EXPIRED.encode()
        if call.endswith("?policy"):  # moto would refuse everything: it does not look at a statement's condition
            if method == "PUT":
                self.policies[path] = body
            found = self.policies.get(path)
            if found is None:
                return 404, {"Content-Type": "text/xml"}, b"<Error><Code>NoSuchBucketPolicy</Code></Error>"
            return (204, {}, b"") if method == "PUT" else (200, {"Content-Type": "application/json"}, found)
        if call == "ListServiceQuotas":
            quotas = [{"QuotaCode": c, "QuotaName": n, "Value": float(v)} for c, (n, v) in QUOTAS.items()]
            return self._json({"Quotas": quotas})
        if call == "GetProducts":
            if self.no_prices:
                denied = {
                    "__type": "AccessDeniedException",
                    "message": "not authorized to perform: pricing:GetProducts",
                }
                return 400, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(denied).encode()
            wanted = {each["Field"]: each["Value"] for each in json.loads(body)["Filters"]}
            price = PRICES.get(wanted["instanceType"])
            dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price:.10f}"}} if price else {}
            product = {"terms": {"OnDemand": {"term": {"priceDimensions": {"rate": dimension}}}}}
            return self._json({"FormatVersion": "aws_v1", "PriceList": [json.dumps(product)] if price else []})
        if call == "DescribeSpotPriceHistory":
            return self._spot(form.get("InstanceType.1", [""])[0])
        return self._moto(method, path, headers, body)

    def _action(self, method: str, path: str, call: str, signed: str) -> str:
        found = re.search(r"Credential=[^/]+/\d+/[\w-]+/([\w-]+)/", signed)
        service = found[1] if found else ""
        if service != "s3":
            return f"{service}:{call}"
        first = re.split(r"[=&]", path.partition("?")[2])[0]
        if path.partition("?")[0].count("/") > 1 and first != "uploadId":
            return f"s3:{method.capitalize()}Object"
        asked = f"{method} {first}"
        return f"s3:{S3_ACTIONS.get(asked, asked)}"

    def _moto(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        sent = {name: value for name, value in headers.items() if name.lower() != "expect"}
        onward = http.client.HTTPConnection(self.moto.removeprefix("http://"), timeout=30)
        try:
            onward.request(method, path, body, sent)
            found = onward.getresponse()
            return found.status, dict(found.getheaders()), found.read()
        finally:
            onward.close()

    def _spot(self, name: str) -> tuple[int, dict[str, str], bytes]:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        items = "".join(
            f"<item><instanceType>{name}</instanceType><productDescription>Linux/UNIX</productDescription><spotPrice>"
            f"{usd:.6f}</spotPrice><timestamp>{now}</timestamp><availabilityZone>{zone}</availabilityZone></item>"
            for zone, usd in SPOT.get(name, {}).items()
        )
        space = "http://ec2.amazonaws.com/doc/2016-11-15/"
        text = f"<spotPriceHistorySet>{items}</spotPriceHistorySet>"
        text = f'<DescribeSpotPriceHistoryResponse xmlns="{space}">{text}</DescribeSpotPriceHistoryResponse>'
        return 200, {"Content-Type": "text/xml"}, text.encode()

    def _json(self, answer: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(answer).encode()
