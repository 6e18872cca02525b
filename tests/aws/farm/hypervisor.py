"""The data plane: makes every running instance of moto's EC2 a machine, and takes it away again.

It compares, ten times a second, what EC2 says with what runs. An instance that EC2 calls running gets a machine; one
that is stopped or terminated loses it at once (a stopped one keeps its disk). A machine that does not come up is not
tried again: its instance ends as terminated with the reason `Server.InternalError`, as on EC2, and the failure is
kept for whoever asks (`failures`).
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from moto.ec2.models.instances import Instance as Ec2Instance
from moto.ec2.models.instances import StateReason

from . import catalog, linux, router
from .control import FarmError

INTERVAL = 0.1
_KEPT_DISKS = 12
"""How many disks of machines that are gone stay readable."""

_cables = itertools.count()


@dataclass
class Machine:
    """One machine: what it was booted from, and the process that keeps it alive."""

    spec: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None
    cable: str = ""
    state: str = "booting"
    """booting, ready, off (EC2 said so), failed (did not boot) or halted (ended by itself)"""
    lost: bool = False
    notice: dict[str, str] | None = None
    reason: str = ""
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def on(self) -> bool:
        """Whether it has a process."""
        return self.state in ("booting", "ready")


class Hypervisor:
    """All machines of a farm."""

    def __init__(self, folder: Path, layers: list[Path], instances: Any) -> None:
        self.folder, self.layers = folder, layers
        self._instances = instances
        """Called without arguments, yields moto's instances with their regions."""
        self.machines: dict[str, Machine] = {}
        self.failures: list[str] = []
        self.events: list[dict[str, Any]] = []
        self._prototype: subprocess.Popen[bytes] | None = None
        """What serves machines' warm Python programs; None with SKYTUNE_FARM_COLD, where all start as on EC2."""
        self.broken: Any = lambda spec: ""
        """Told a spec, says how its boot is to fail (a test's wish): crash, silent, or "" for not at all."""

    def start(self) -> None:
        """Begin to compare, in a thread."""
        if not os.environ.get("SKYTUNE_FARM_COLD"):
            words = [sys.executable, "-m", "farm.prototype", self.folder / "prototype", *self.layers]
            self._prototype = linux.spawn(words, stdin=subprocess.PIPE)
        threading.Thread(target=self._forever, daemon=True, name="hypervisor").start()

    def _forever(self) -> None:
        while True:
            try:
                self.reconcile()
            except Exception as error:  # told, and seen by the fixture; one bad instance must not stop the others
                self._fail(f"hypervisor: {type(error).__name__}: {error}")
            time.sleep(INTERVAL)

    def reconcile(self) -> None:
        """Start and stop machines until they are what EC2 says."""
        for region, instance in self._instances():
            machine = self.machines.get(instance.id)
            running = instance.state in ("pending", "running")
            if running and (machine is None or machine.state == "off"):
                try:
                    with machine.lock if machine else nullcontext():
                        # One that is being preempted is off a moment before EC2 says so.
                        if instance.state in ("pending", "running"):
                            self._boot(region, instance, machine)
                except Exception as error:  # once: an instance that has no machine must not be tried for ever
                    self._fail(f"{instance.id} could not be started: {type(error).__name__}: {error}")
                    instance.terminate()
            elif not running and machine is not None and machine.on:
                self._power_off(machine, f"EC2 says {instance.state}")
                if instance.state == "terminated":
                    self._forget_old_disks()

    def preempt(self, id_: str, notice_s: float) -> None:
        """Take a spot machine away in `notice_s` seconds, announced to it by its metadata; at 0 without a notice."""
        machine, instance = self._find(id_)
        if not machine.spec["spot"]:
            raise FarmError(f"{id_} is an on-demand machine: EC2 preempts spot machines only")
        if notice_s <= 0:
            return self._take(machine, instance)
        when = datetime.fromtimestamp(time.time() + notice_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        machine.notice = {"action": "terminate", "time": when}
        self._note("notice", machine, when)
        timer = threading.Timer(notice_s, self._take, (machine, instance))
        timer.daemon = True
        timer.start()

    def _take(self, machine: Machine, instance: Ec2Instance) -> None:
        if instance.state not in ("pending", "running"):
            return
        with machine.lock:
            self._power_off(machine, "preempted")
            instance.terminate()
            code = "Server.SpotInstanceTermination"
            instance.state_reason = StateReason(f"{code}: Spot instance termination", code)

    def cut(self, id_: str, lost: bool) -> None:
        """Unplug a machine's network cable, or plug it in again; EC2 goes on to call it running."""
        machine, _ = self._find(id_)
        router.switch(machine.cable, on=not lost)
        machine.lost = lost
        self._note("lost" if lost else "found", machine)

    def by_address(self, address: str) -> dict[str, Any] | None:
        """Return what the metadata service tells of the machine with this address."""
        for machine in list(self.machines.values()):
            if machine.on and address in (machine.spec["private_ip"], machine.spec["public_ip"]):
                return {**machine.spec, "notice": machine.notice}
        return None

    def _find(self, id_: str) -> tuple[Machine, Ec2Instance]:
        machine = self.machines.get(id_)
        if machine is None or not machine.on:
            raise FarmError(f"no machine {id_} runs")
        return machine, next(instance for _, instance in self._instances() if instance.id == id_)

    def _boot(self, region: str, instance: Ec2Instance, before: Machine | None) -> None:
        spec = self._spec(region, instance)
        machine = self.machines[instance.id] = before or Machine(spec)
        machine.spec, machine.state, machine.notice, machine.lost = spec, "booting", None, False
        machine.cable = f"vm{next(_cables)}"
        folder = Path(spec["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        spec_file = folder / "spec.json"
        spec_file.write_text(json.dumps(spec))
        with (folder / "console.log").open("ab") as console:
            words = [sys.executable, "-m", "farm.machine", spec_file]
            process = linux.spawn(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=console)
        machine.process = process
        self._note("boot", machine)
        threading.Thread(target=self._follow, args=(machine, process, instance), daemon=True).start()

    def _follow(self, machine: Machine, process: subprocess.Popen[bytes], instance: Ec2Instance) -> None:
        """Put the cable in, note when the machine is up, and what it means when it ends."""
        assert process.stdin is not None and process.stdout is not None
        try:
            if process.stdout.readline() == b"unshared\n":
                router.plug(machine.cable, process.pid)
                process.stdin.write(b"go\n")
                process.stdin.flush()
                if process.stdout.readline() == b"ready\n":
                    machine.state = "ready" if machine.on else machine.state
                    self._warm(process.pid)
                    self._note("ready", machine)
                    process.stdout.read()
        except (RuntimeError, OSError) as error:
            if machine.on:
                machine.reason = str(error)
            process.kill()
        process.wait()
        with machine.lock:
            if machine.on and machine.process is process:
                self._ended_by_itself(machine, instance)

    def _warm(self, keeper: int) -> None:
        """Have the machine's Python programs start warm."""
        first = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        if self._prototype is not None and self._prototype.stdin is not None and first:
            self._prototype.stdin.write(f"{first[0]}\n".encode())
            self._prototype.stdin.flush()

    def _ended_by_itself(self, machine: Machine, instance: Ec2Instance) -> None:
        booted = machine.state == "ready"
        machine.state = "halted" if booted else "failed"
        reason = "Client.InstanceInitiatedShutdown" if booted else "Server.InternalError"
        if instance.state in ("pending", "running"):
            instance.terminate()
        instance.state_reason = StateReason(f"{reason}: the machine ended", reason)
        output = machine.reason or (Path(machine.spec["folder"]) / "console.log").read_text().strip()[-600:]
        self._note(machine.state, machine, output)
        # A boot that a test asked to fail is no failure of the stand-in.
        if not booted and not machine.spec["broken"]:
            self._fail(f"{machine.spec['id']} did not boot: {output}")

    def _power_off(self, machine: Machine, why: str) -> None:
        with machine.lock:
            machine.state, machine.reason = "off", why
            if machine.process is not None:
                machine.process.kill()
                machine.process.wait()
        self._note("off", machine, why)

    def _spec(self, region: str, instance: Ec2Instance) -> dict[str, Any]:
        private = str(instance.private_ip)
        spec = {
            "id": instance.id,
            "type": instance.instance_type,
            "region": region,
            "zone": instance._placement.zone,
            "spot": instance.lifecycle == "spot",
            "private_ip": private,
            "public_ip": instance.public_ip,
            "hostname": f"ip-{private.replace('.', '-')}",
            "folder": str(self.folder / "machines" / instance.id),
            "layers": [str(layer) for layer in self.layers],
            "user_data": _cloud_config(instance.user_data),
        }
        return {**spec, "broken": self.broken(spec)}

    def _forget_old_disks(self) -> None:
        off = [machine for machine in self.machines.values() if not machine.on]
        for machine in off[:-_KEPT_DISKS]:
            shutil.rmtree(Path(machine.spec["folder"], "disk"), ignore_errors=True)

    def _note(self, event: str, machine: Machine, detail: str = "") -> None:
        spec = machine.spec
        self.events.append({"time": time.time(), "event": event, "instance": spec["id"], "detail": detail})
        print(f"{time.strftime('%H:%M:%S')} {event} {spec['id']} {spec['type']} {spec['zone']} {detail}", flush=True)

    def _fail(self, text: str) -> None:
        if text not in self.failures:
            self.failures.append(text)
            print(f"{time.strftime('%H:%M:%S')} FAILURE {text}", flush=True)


def _cloud_config(user_data: Any) -> dict[str, Any]:
    """Return an instance's user data (moto's encoded string, or None), if it is the YAML that cloud-init reads."""
    text = user_data.decode() if user_data else ""
    return yaml.safe_load(text) if text.startswith("#cloud-config") else {}


def all_instances(backends: Any) -> Iterator[tuple[str, Ec2Instance]]:
    """Yield every instance of every region, gone ones included."""
    for region in catalog.REGIONS:
        for reservation in list(backends[catalog.ACCOUNT][region].reservations.values()):
            for instance in list(reservation.instances):
                yield region, instance
