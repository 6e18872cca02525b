"""What stands before moto: reads a request, notes it, refuses or slows it where a rule says so.

It also answers what moto does not know: an account's quotas and the spot market's prices.
"""

import io
import json
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from . import catalog
from .faults import Fault, Faults, Request, no_capacity

_SCOPE = re.compile(r"Credential=([^/,]+)/[^/]*/([^/]+)/([^/]+)/aws4_request")
_XML = [("Content-Type", "text/xml;charset=UTF-8")]
_CHUNK = 65536

StartResponse = Callable[..., Any]


class Gate:
    """A WSGI application around moto's."""

    def __init__(
        self,
        app: Callable[..., Iterable[bytes]],
        faults: Faults,
        zone_of: Callable[[str, str], str],
        running: Callable[[str], list[tuple[str, bool]]],
    ) -> None:
        self.app, self.faults = app, faults
        self._zone_of, self._running = zone_of, running
        self.calls: deque[Request] = deque(maxlen=50_000)

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        request = self._read(environ)
        self.calls.append(request)
        speed = 0.0
        for fault in self.faults.firing(request):
            time.sleep(fault.delay_s)
            speed = fault.bytes_per_s or speed
            if fault.code:
                return _refuse(environ, request, fault, start_response)
        if request.service == "servicequotas":
            return self._quotas(environ, request, start_response)
        if request.action == "DescribeSpotPriceHistory":
            return _spot_prices(request, start_response)
        if request.action == "RunInstances" and (over := self._over_quota(request)):
            return _refuse(environ, request, over, start_response)
        if not speed:
            return self.app(environ, start_response)
        time.sleep(int(environ.get("CONTENT_LENGTH") or 0) / speed)
        return _slowly(self.app(environ, start_response), speed)

    def matching(self, **patterns: Any) -> list[dict[str, Any]]:
        """Return the calls so far that fit the patterns of a `Fault`, oldest first."""
        rule = Fault(**patterns)
        return [asdict(call) for call in list(self.calls) if rule.fits(call)]

    def _read(self, environ: dict[str, Any]) -> Request:
        found = _SCOPE.search(environ.get("HTTP_AUTHORIZATION", ""))
        key, region, service = found.groups() if found else ("", "", "")
        if service == "s3" or not found:
            return Request(service, f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}", region, key)
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        if target := environ.get("HTTP_X_AMZ_TARGET"):
            params = {k: str(v) for k, v in json.loads(body or b"{}").items()}
            return Request(service, target.rpartition(".")[2], region, key, params)
        params = dict(parse_qsl(body.decode(errors="replace")))
        request = Request(service, params.get("Action", ""), region, key, params)
        if request.action == "RunInstances":
            subnet = params.get("NetworkInterface.1.SubnetId") or params.get("SubnetId", "")
            request.zone = params.get("Placement.AvailabilityZone") or self._zone_of(region, subnet)
        return request

    def _over_quota(self, request: Request) -> Fault | None:
        return self.faults.over_quota(request, self._running(request.region))

    def _quotas(self, environ: dict[str, Any], request: Request, start: StartResponse) -> Iterable[bytes]:
        region = request.region
        quotas = [
            {
                "ServiceCode": "ec2",
                "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
                "QuotaArn": f"arn:aws:servicequotas:{region}:{catalog.ACCOUNT}:ec2/{code}",
                "QuotaCode": code,
                "QuotaName": name,
                "Value": float(self.faults.quota(region, code)),
                "Unit": "None",
                "Adjustable": True,
                "GlobalQuota": False,
            }
            for code, name, _ in catalog.QUOTAS.values()
        ]
        if request.action.startswith("List"):
            return _json({"Quotas": quotas}, start)
        for quota in quotas:
            if quota["QuotaCode"] == request.params.get("QuotaCode"):
                return _json({"Quota": quota}, start)
        missing = Fault(code="NoSuchResourceException", message="The request failed because of an unknown quota")
        return _refuse(environ, request, missing, start)


def _json(answer: dict[str, Any], start: StartResponse, status: str = "200 OK") -> list[bytes]:
    start(status, [("Content-Type", "application/x-amz-json-1.1")])
    return [json.dumps(answer).encode()]


def _refuse(environ: dict[str, Any], request: Request, fault: Fault, start: StartResponse) -> list[bytes]:
    """Answer with an error in the words of the service's own protocol."""
    code, status = fault.code, f"{fault.status} Error"
    if code == "ExpiredToken" and request.service == "ec2":
        code = "RequestExpired"  # EC2's own name for it
    request.status, request.error = fault.status, code
    message = fault.message
    if code == "InsufficientInstanceCapacity" and not message:
        message = no_capacity(request.instance_type, request.zone)
    if "HTTP_X_AMZ_TARGET" in environ:
        return _json({"__type": code, "message": message}, start, status)
    error = f"<Code>{escape(code)}</Code><Message>{escape(message)}</Message>"
    if request.service == "ec2":
        text = f"<Response><Errors><Error>{error}</Error></Errors><RequestID>farm</RequestID></Response>"
    elif request.service == "s3":
        text = f"<Error>{error}<RequestId>farm</RequestId></Error>"
    else:
        text = f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error><RequestId>farm</RequestId></ErrorResponse>"
    start(status, _XML)
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()]


def _spot_prices(request: Request, start: StartResponse) -> list[bytes]:
    """Answer with the price list's spot prices, as of now, for the types and the zone asked for."""
    types = [value for name, value in request.params.items() if name.startswith("InstanceType.")]
    types += _filtered(request, "instance-type")
    zones = _filtered(request, "availability-zone")
    zones += [request.params["AvailabilityZone"]] if "AvailabilityZone" in request.params else []
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = "".join(
        f"<item><instanceType>{name}</instanceType><productDescription>Linux/UNIX</productDescription>"
        f"<spotPrice>{catalog.price(name, zone, True):.6f}</spotPrice><timestamp>{now}</timestamp>"
        f"<availabilityZone>{zone}</availabilityZone></item>"
        for name in types or catalog.TYPES
        for zone in zones or catalog.REGIONS.get(request.region, {})
        if name in catalog.TYPES and catalog.region_of(zone) == request.region
    )
    start("200 OK", _XML)
    spaced = 'xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"'
    body = f"<requestId>farm</requestId><spotPriceHistorySet>{items}</spotPriceHistorySet>"
    return [f"<DescribeSpotPriceHistoryResponse {spaced}>{body}</DescribeSpotPriceHistoryResponse>".encode()]


def _filtered(request: Request, name: str) -> list[str]:
    """Return the values that a request's filter of this name allows."""
    found = [k.removesuffix(".Name") for k, v in request.params.items() if k.startswith("Filter.") and v == name]
    return [v for k, v in request.params.items() if any(k.startswith(f"{prefix}.Value.") for prefix in found)]


def _slowly(body: Iterable[bytes], speed: float) -> Iterator[bytes]:
    for part in body:
        for start in range(0, len(part), _CHUNK):
            chunk = part[start : start + _CHUNK]
            time.sleep(len(chunk) / speed)
            yield chunk
