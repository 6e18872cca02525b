"""What `python src/stack.py` does: register, check, list, destroy, policy. Each prints its lines as they come true."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import ConfigError, UserError
from . import environment, files, skypilot
from .checks import Finding, Level
from .doctor import line
from .later import Later

if TYPE_CHECKING:
    from .aws.account import Account
    from .aws.names import Names
    from .registered import Registered

CLOUD = "aws"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The words of a command; None where nothing was said."""

    name: str
    configs: Path
    file: str | None = None
    region: str | None = None
    bucket: str | None = None
    compute: str | None = None
    spot: bool | None = None
    keep_days: int | None = None
    timeout: float = 9.0
    """Seconds within which `check` has to know."""

    def stack_file(self) -> files.StackFile:
        """Return the stack file with the words put in."""
        found = files.read(self.configs, self.file or self.name)
        for key in ("region", "bucket", "compute", "spot", "keep_days"):
            if getattr(self, key) is not None:
                setattr(found, key, getattr(self, key))
        found.__post_init__()
        return found


def register(asked: Asked) -> int:
    """Make what is missing on AWS, and the stack in ZenML; a second time it changes nothing."""
    from .aws import account as accounts
    from .aws import names, stack

    names.checked_stack(asked.name)
    file = asked.stack_file()
    settings = _settings(asked, file)
    client = environment.connect()
    from . import registered
    from .aws.reporting import Done

    before = registered.find(client, asked.name)
    if before is None:
        registered.refuse_taken(client, asked.name)
    account = accounts.connect(asked.region or (before.region if before else file.region))
    own = _names(asked.name, account, asked.bucket or (before.bucket if before else file.bucket))
    if before is not None:
        _refuse_moving(before, own)
    print(f"stack {asked.name}: account {account.id}, {account.region}", flush=True)
    done = stack.ensure(account, own, file.keep_days, _say)
    settings = {"infra": CLOUD, "region": account.region, **settings}
    labels = registered.labels(CLOUD, account.region, own.bucket, account.id, own.role)
    changed = registered.register(client, asked.name, settings, labels)
    verb = "changed" if before and changed else "made" if changed else "found"
    _say(Done(verb, "stack", asked.name, "in ZenML, with the step operator skypilot"))
    print(stack.at_rest(account, own))
    if not changed and not any(each.changed for each in done):
        print("nothing was changed")
    print(_next(asked, own, file))
    return 0


def check(asked: Asked) -> int:
    """Say whether a run on the stack would get its machine now; return 1 if not."""
    from .aws import account as accounts
    from .aws import names, preflight

    names.checked_stack(asked.name)
    started = time.monotonic()
    machine = files.machine(asked.configs, asked.compute)
    stored = Later(lambda: _registered(asked.name))  # importing ZenML and asking AWS take their time together
    file = asked.stack_file() if (asked.configs / "stacks" / f"{asked.name}.yaml").is_file() or asked.file else None
    found = stored.by(time.monotonic() + 60)
    if found is None and file is None:
        raise ConfigError(f"stack {asked.name}: neither registered nor a file; `python src/stack.py list` names all")
    region = asked.region or (found.region if found else file.region if file else None)
    counts = dict.fromkeys(Level, 0)

    def show(finding: Finding) -> None:
        counts[finding.level] += 1
        print(line(finding), flush=True)

    way = f"`python src/stack.py register {asked.name}`"
    show(Finding(Level.ok, "stack", _of_stack(found)) if found else
         Finding(Level.fail, "stack", f"{asked.name} is not registered in ZenML", way))  # fmt: skip
    try:
        account = accounts.connect(region)
    except UserError as error:
        show(Finding(Level.fail, "identity", str(error)))
        show(skypilot.versions())
        return _verdict(counts, asked, started)
    if found and found.account != account.id:
        text = f"the credentials are of account {account.id}, the stack is of {found.account}"
        show(Finding(Level.fail, "identity", text, "AWS_PROFILE chooses other credentials"))
        return _verdict(counts, asked, started)
    base = dict(found.settings) if found else _settings(asked, file or files.StackFile())
    if machine:
        base = {key: value for key, value in base.items() if key not in files.SIZE}
    base.update(machine)
    if asked.spot is not None:
        base["use_spot"] = asked.spot
    own = _names(asked.name, account, asked.bucket or (found.bucket if found else file.bucket if file else None))
    until = max(started + asked.timeout, time.monotonic() + preflight.LEAST_SECONDS)
    for finding in preflight.examine(account, own, base, any(base.get(key) for key in files.SIZE), until):
        show(finding)
    return _verdict(counts, asked, started)


def show_all(asked: Asked) -> int:
    """List the stacks that were registered here, and the files of those that could be."""
    client = environment.connect()
    from . import registered

    found = registered.stacks(client)
    for each in found:
        print(f"{'*' if each.active else ' '} {each.name:<14} {_of_stack(each)}")
    others = sorted(file.stem for file in (asked.configs / "stacks").glob("*.yaml"))
    rest = [name for name in others if name not in {each.name for each in found}]
    if not found:
        print("no stack is registered")
    if rest:
        print(f"files without a stack: {', '.join(rest)} (python src/stack.py register NAME)")
    print("`zenml stack set NAME` switches (*); `zenml stack set default` trains on this machine")
    return 0


def destroy(asked: Asked, *, yes: bool, delete_data: bool) -> int:
    """Take a stack away, on AWS and in ZenML; what was not made for it stays."""
    from .aws import account as accounts
    from .aws import names, stack

    names.checked_stack(asked.name)
    client = environment.connect()
    from . import registered
    from .aws.reporting import Done

    found = registered.find(client, asked.name)
    account = accounts.connect(asked.region or (found.region if found else None))
    if found and found.account != account.id:
        raise UserError(f"stack {asked.name} is of another account than these credentials: AWS_PROFILE chooses others")
    own = _names(asked.name, account, asked.bucket or (found.bucket if found else None))
    stack.refuse(account, own, delete_data)
    print(f"stack {asked.name}: account {account.id}, {account.region}", flush=True)
    if not yes and not _agreed(own, delete_data):
        print("nothing was changed")
        return 1
    stack.remove(account, own, _say)
    skypilot.configuration(asked.name).unlink(missing_ok=True)
    # Last: as long as ZenML knows the stack, the same command finds what it could not take away the first time.
    gone = registered.delete(client, asked.name)
    _say(Done("removed" if gone else "absent", "stack", asked.name, "in ZenML"))
    return 0


def policy(asked: Asked, *, setup: bool) -> int:
    """Print the IAM policy that a person needs, as JSON."""
    from .aws import account as accounts
    from .aws import names, policies

    names.checked_stack(asked.name)
    file = asked.stack_file() if not asked.region or not asked.bucket else files.StackFile()
    account = accounts.connect(asked.region or file.region)
    own = _names(asked.name, account, asked.bucket or file.bucket)
    print(json.dumps(policies.setup(own) if setup else policies.person(own), indent=2))
    return 0


def _refuse_moving(stack: "Registered", own: "Names") -> None:
    """Refuse to register a stack elsewhere: what it has where it is would be forgotten, and go on costing.

    Raises:
        UserError: the account, the region or the bucket is another one.
    """
    for kind, old, new in (
        ("account", stack.account, own.account), ("region", stack.region, own.region),
        ("bucket", stack.bucket, own.bucket),
    ):  # fmt: skip
        if old != new:
            raise UserError(
                f"stack {stack.name} is registered with {kind} {old}, not {new}: `python src/stack.py destroy "
                f"{stack.name}` first, or take another name (--file {stack.name} has the same settings)"
            )


def _settings(asked: Asked, file: files.StackFile) -> dict[str, Any]:
    """Return what the step operator is registered with, apart from the place."""
    machine = {**file.machine, **files.machine(asked.configs, file.compute)}
    return {**machine, "use_spot": file.spot}


def _names(stack: str, account: "Account", bucket: str | None) -> "Names":
    from .aws.names import Names, checked_bucket

    given = checked_bucket(bucket) if bucket else None
    return Names(
        stack=stack, account=account.id, region=account.region, partition=account.partition, given_bucket=given
    )  # fmt: skip


def _registered(name: str) -> "Registered | None":
    client = environment.connect()
    from . import registered

    return registered.find(client, name)


def _of_stack(stack: "Registered") -> str:
    size = next((str(stack.settings[key]) for key in files.SIZE if stack.settings.get(key)), "no machine of its own")
    many = f"{stack.settings['num_nodes']} x " if int(stack.settings.get("num_nodes") or 1) > 1 else ""
    market = "spot" if stack.settings.get("use_spot") else "on demand"
    return f"{CLOUD} {stack.region}, s3://{stack.bucket}, {many}{size}, {market}"


def _next(asked: Asked, names: "Names", file: files.StackFile) -> str:
    machine = "" if file.compute else " compute=4xa10g"
    return "\n".join([
        "next:",
        f"  python src/stack.py check {asked.name}{'' if file.compute else ' --compute 4xa10g'}",
        f"  zenml stack set {asked.name}",
        f"  python src/run.py checkpoint.store={names.store}{machine}",
    ])  # fmt: skip


def _agreed(names: "Names", delete_data: bool) -> bool:
    if not sys.stdin.isatty():
        raise UserError("destroy asks first: --yes agrees beforehand")
    data = " and everything in it" if delete_data else ""
    return input(f"delete s3://{names.bucket}{data}, role {names.role}, repository? [y/N] ").strip().lower() == "y"


def _verdict(counts: dict[Level, int], asked: Asked, started: float) -> int:
    seconds = f"({time.monotonic() - started:.1f} s)"
    if counts[Level.fail]:
        print(f"\nno go: {counts[Level.fail]} of these must be put right first (FAIL) {seconds}")
        return 1
    print(f"\ngo: zenml stack set {asked.name} && python src/run.py {seconds}")
    return 0


def _say(thing: object) -> None:
    print(thing, flush=True)
