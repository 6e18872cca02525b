"""The farm's one service: AWS's API (moto behind a gate), the metadata service, the hypervisor and the test's controls.

Started inside the farm's namespaces as `python -m farm.cloud FOLDER`; `FOLDER/farm.json` says what from. What moto 5.2
lacks of a real account is put right in `_mend_moto` and `_open_account`, each with its reason.
"""

import http.server
import ipaddress
import itertools
import json
import logging
import os
import ssl
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from . import catalog, control, hypervisor, metadata, router
from .account import CERTIFICATE, PORT, ROLE
from .faults import Faults
from .router import OUTSIDE


def main(folder: Path) -> None:
    """Serve until killed."""
    spec = json.loads((folder / "farm.json").read_text())
    os.environ |= {"MOTO_EC2_LOAD_DEFAULT_AMIS": "false", "MOTO_IAM_LOAD_MANAGED_POLICIES": "true"}
    router.start()
    backends = _mend_moto()
    _open_account(backends)
    faults = Faults()
    machines = hypervisor.Hypervisor(
        folder, [Path(layer) for layer in spec["layers"]], lambda: hypervisor.all_instances(backends)
    )
    machines.broken = faults.boot
    gate = _serve_api(backends, faults)
    metadata.serve(machines.by_address)
    _serve_outside(folder)
    machines.start()
    control.serve(folder, _methods(machines, faults, gate))
    print("farm: ready", flush=True)
    threading.Event().wait()


def _methods(machines: Any, faults: Faults, gate: Any) -> dict[str, Any]:
    return {
        "ping": lambda: "pong",
        "instances": lambda: [_row(region, each, machines.machines) for region, each in machines._instances()],
        "preempt": lambda instance, notice_s: machines.preempt(instance, notice_s),
        "cut": lambda instance, lost: machines.cut(instance, lost),
        "terminate": lambda instance: _terminate(machines, instance),
        "process": lambda instance: machines._find(instance)[0].process.pid,
        "failures": lambda: machines.failures,
        "events": lambda: machines.events,
        "calls": gate.matching,
        "fault": faults.add,
        "break_boots": faults.break_boots,
        "heal": faults.remove,
        "heal_all": faults.clear,
        "set_quota": faults.set_quota,
    }


def _row(region: str, instance: Any, machines: dict[str, Any]) -> dict[str, Any]:
    """Return what the test's `Instance` is made of."""
    machine = machines.get(instance.id)
    spec = machine.spec if machine else {}
    return {
        "id": instance.id,
        "state": instance.state,
        "type": instance.instance_type,
        "region": region,
        "zone": instance._placement.zone,
        "spot": instance.lifecycle == "spot",
        "private_ip": spec.get("private_ip") or str(instance.private_ip),
        "public_ip": spec.get("public_ip"),
        "launch_time": instance.launch_time.isoformat() if hasattr(instance.launch_time, "isoformat") else "",
        "tags": {tag["key"]: tag["value"] for tag in instance.get_tags()},
        "machine": machine.state if machine else "none",
        "lost": bool(machine and machine.lost),
        "notice": machine.notice if machine else None,
        "reason": getattr(instance.state_reason, "code", "") or "",
    }


def _terminate(machines: Any, id_: str) -> None:
    for _, instance in machines._instances():
        if instance.id == id_ and instance.state != "terminated":
            instance.terminate()


def _mend_moto() -> Any:
    """Change what in moto a machine cannot live with; return EC2's backends."""
    import moto.ec2.models.elastic_network_interfaces as interfaces
    import moto.ec2.models.subnets as subnets
    import moto.ec2.utils as utils
    import moto.iam.policy_validation as validation
    from moto.ec2.models import ec2_backends

    # A public address has to lie in the network that the farm's bridge serves, and no address may come twice: SSH
    # connections are kept open and found again by address.
    public = itertools.count(10)
    network = ipaddress.ip_network("198.18.0.0/15")

    def public_ip() -> str:
        return str(network[next(public)])

    assert interfaces.random_public_ip is utils.random_public_ip
    interfaces.random_public_ip = utils.random_public_ip = public_ip

    # moto's regions share one address range, and here they share one bridge: every region gets its own part of each
    # subnet.
    private = itertools.count(10)
    regions = list(catalog.REGIONS)

    def subnet_ip(self: Any, instance: Any) -> str:
        part = regions.index(self.ec2_backend.region_name) if self.ec2_backend.region_name in regions else len(regions)
        address = str(self.cidr[part * 1000 + next(private) % 990])
        self._subnet_ips[address] = instance
        return address

    subnets.Subnet.get_available_subnet_ip = subnet_ip

    # AWS accepts a policy without a Version, and SkyPilot sends such a one.
    validation.BaseIAMPolicyValidator._validate_version = lambda self: None
    return ec2_backends


def _open_account(backends: Any) -> None:
    """Give the account what a used one has: images, internet gateways of the default VPCs, and SkyPilot's role.

    Without the role, SkyPilot makes it and sleeps twice 15 s for it to be known everywhere.
    """
    from moto.ec2.models.amis import Ami
    from moto.iam.models import iam_backends

    for region in catalog.REGIONS:
        backend = backends[catalog.ACCOUNT][region]
        for image in catalog.ec2_images(region):
            backend.amis[image["ami_id"]] = Ami(backend, **image)
        vpc = backend.get_default_vpc()
        gateway = backend.create_internet_gateway()
        backend.attach_internet_gateway(gateway.id, vpc.id)
        for table in backend.describe_route_tables(filters={"vpc-id": [vpc.id]}):
            backend.create_route(table.id, "0.0.0.0/0", gateway_id=gateway.id)
    iam = iam_backends[catalog.ACCOUNT]["aws"]
    trust = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
    iam.create_role(ROLE, policy, "/", None, "", [], "3600")
    iam.create_instance_profile(ROLE, "/", [])
    iam.add_role_to_instance_profile(ROLE, ROLE)


def _serve_api(backends: Any, faults: Faults) -> Any:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    from .gate import Gate

    def zone_of(region: str, subnet: str) -> str:
        found = backends[catalog.ACCOUNT][region].describe_subnets(subnet_ids=[subnet] if subnet else None)
        return str(found[0].availability_zone) if found else ""

    def running(region: str) -> list[tuple[str, bool]]:
        return [
            (instance.instance_type, instance.lifecycle == "spot")
            for where, instance in hypervisor.all_instances(backends)
            if where == region and instance.state in ("pending", "running")
        ]

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the gate notes every call
    gate = Gate(DomainDispatcherApplication(create_backend_app), faults, zone_of, running)
    server = make_server("0.0.0.0", PORT, gate, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True, name="aws").start()
    return gate


def _serve_outside(folder: Path) -> None:
    """Answer at the addresses that SkyPilot asks to learn whether there is a network, with a certificate of our own."""
    certificate = folder / CERTIFICATE
    key = folder / "outside.key"
    _write_certificate(certificate, key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    for address in OUTSIDE:
        server = http.server.ThreadingHTTPServer((address, 443), Handler)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True, name=f"outside {address}").start()


def _write_certificate(certificate: Path, key: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "the farm's outside")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address)) for address in OUTSIDE]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private_bytes = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    key.touch(0o600)
    key.write_bytes(private_bytes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
