"""What a test switches on and off: the ways in which AWS fails."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import catalog
from .account import USER_KEY
from .control import Asking
from .instance import Instance, id_of


class Switches(Asking):
    """The part of `Farm` that makes things go wrong. Every context manager ends its fault when its block ends."""

    home: Path

    # Machines.

    def preempt(self, instance: Instance | str, notice_s: float = 120) -> None:
        """Take a spot machine away, as EC2 does: with a notice in its metadata, `notice_s` seconds before; 0 for none.

        Returns at once; raises FarmError for an on-demand machine, or one that does not run.
        """
        self.call("preempt", instance=id_of(instance), notice_s=notice_s)

    def lose(self, instance: Instance | str) -> None:
        """Cut a machine's network; EC2 goes on to call it running, and it goes on to run."""
        self.call("cut", instance=id_of(instance), lost=True)

    def find(self, instance: Instance | str) -> None:
        """Give a lost machine its network back."""
        self.call("cut", instance=id_of(instance), lost=False)

    @contextlib.contextmanager
    def broken_boot(self, how: str = "silent", instance_type: str = "", zone: str = "") -> Iterator[None]:
        """New machines that fit do not come up: `silent`, they run without an sshd; `crash`, EC2 ends them."""
        number = self.call("break_boots", how=how, type=instance_type, zone=zone)
        with self._until_healed(number):
            yield

    def terminate(self, instance: Instance | str) -> None:
        """End a machine without SkyPilot's knowing, as a person with the AWS console might."""
        self.call("terminate", instance=id_of(instance))

    # What may be had.

    @contextlib.contextmanager
    def no_capacity(
        self, instance_type: str = "", zone: str = "", region: str = "", spot: bool | None = None
    ) -> Iterator[None]:
        """EC2 is sold out of a type (a pattern like `g5.*`; "" for all) in a zone or region, on one market or both."""
        with self.fault(
            service="ec2",
            action="RunInstances",
            code="InsufficientInstanceCapacity",
            status=500,
            instance_type=instance_type,
            zone=zone,
            region=region,
            spot=spot,
        ):
            yield

    @contextlib.contextmanager
    def quota(self, family: str, cpus: int, region: str | None = None, spot: bool | None = None) -> Iterator[None]:
        """The account may run so many vCPUs of a family (Standard, G, P), in one region or all, on one market or both.

        EC2 refuses more with VcpuLimitExceeded (spot: MaxSpotInstanceCountExceeded); Service Quotas says the number.
        """
        before = {key: value[2] for key, value in catalog.QUOTAS.items() if key[0] == family}
        where = [region] if region else list(catalog.REGIONS)
        markets = [spot] if spot is not None else [False, True]
        for each in where:
            for market in markets:
                self.call("set_quota", region=each, family=family, spot=market, cpus=cpus)
        try:
            yield
        finally:
            for each in where:
                for market in markets:
                    self.call("set_quota", region=each, family=family, spot=market, cpus=before[family, market])

    # Who may do what.

    @contextlib.contextmanager
    def expired_credentials(self) -> Iterator[None]:
        """The user's credentials have expired (ExpiredToken; EC2 calls it RequestExpired); machines' roles have not."""
        text = "The security token included in the request is expired"
        with self.fault(key=USER_KEY, code="ExpiredToken", message=text):
            yield

    @contextlib.contextmanager
    def no_credentials(self) -> Iterator[None]:
        """The user has no credentials: ~/.aws/credentials is away. A process that has read them still has them."""
        there = self.home / ".aws" / "credentials"
        away = there.with_name("credentials.away")
        there.rename(away)
        try:
            yield
        finally:
            away.rename(there)

    @contextlib.contextmanager
    def denied(self, service: str, action: str, times: int | None = None) -> Iterator[None]:
        """The user may not do this (S3's actions look like `PUT /bucket/key`; patterns allowed)."""
        code = "UnauthorizedOperation" if service == "ec2" else "AccessDenied"
        text = f"You are not authorized to perform this operation: {service} {action}"
        with self.fault(service=service, action=action, key=USER_KEY, code=code, message=text, status=403, times=times):
            yield

    # How it answers.

    @contextlib.contextmanager
    def slow_s3(self, delay_s: float = 0.5, bytes_per_s: float = 0) -> Iterator[None]:
        """S3 answers every request late, and sends and takes bodies at this speed (0: as fast as can be)."""
        with self.fault(service="s3", delay_s=delay_s, bytes_per_s=bytes_per_s):
            yield

    @contextlib.contextmanager
    def fault(self, **rule: Any) -> Iterator[None]:
        """Any other rule: the fields of `faults.Fault`; see there."""
        with self._until_healed(self.call("fault", **rule)):
            yield

    def heal(self) -> list[dict[str, Any]]:
        """Switch all faults off and put the quotas back; return the rules that were still on."""
        return list(self.call("heal_all"))

    @contextlib.contextmanager
    def _until_healed(self, number: int) -> Iterator[None]:
        try:
            yield
        finally:
            self.call("heal", number=number)
