"""What `python src/stack.py` does: register, list, destroy, policy. Each prints its lines as they come true."""

import json
import sys
from typing import TYPE_CHECKING

from ..aws import skypilot
from ..config import UserError
from . import environment, files
from .options import CLOUD, StackOptions, described, is_sagemakers, names_of, settings_of

if TYPE_CHECKING:
    from ..aws.names import Names
    from .registry import Registered


def register(asked: StackOptions) -> int:
    """Make what is missing on AWS, and the stack in ZenML; a second time it changes nothing."""
    from ..aws import account as accounts
    from ..aws import names, role, stack

    names.checked_stack(asked.name)
    file = asked.stack_file()
    settings = settings_of(asked, file)
    client = environment.connect()
    from ..aws.reporting import Done
    from . import registry as registered

    before = registered.find_stack(client, asked.name)
    if before is None:
        registered.check_name_free(client, asked.name)
    account = accounts.connect(asked.region or (before.region if before else file.region))
    own = names_of(asked.name, account, asked.bucket or (before.bucket if before else file.bucket))
    if before is not None:
        _check_same_place(before, own)
    print(f"stack {asked.name}: account {account.id}, {account.region}", flush=True)
    with accounts.spoken(asked.name):
        jobs = asked.sagemaker or is_sagemakers(settings) or role.exists(account, own.sagemaker_role)
    done = stack.ensure(account, own, file.keep_days, _print, sagemaker=jobs)
    settings = {"infra": CLOUD, "region": account.region, **settings}
    labels = registered.labels(CLOUD, account.region, own.bucket, account.id, own.role)
    execution = own.sagemaker_role_arn if jobs else None
    changed = registered.register(client, asked.name, settings, labels, own.store, execution)
    verb = "changed" if before and changed else "made" if changed else "found"
    _print(Done(verb, "stack", asked.name, "in ZenML, with the step operator skypilot"))
    print(stack.at_rest(account, own))
    if not changed and not any(each.changed for each in done):
        print("nothing was changed")
    print(_next(asked, own, file))
    return 0


def show_all(asked: StackOptions) -> int:
    """List the stacks that were registered here, and the files of those that could be."""
    client = environment.connect()
    from . import registry as registered

    found = registered.stacks(client)
    for each in found:
        print(f"{'*' if each.active else ' '} {each.name:<14} {described(each)}")
    others = sorted(file.stem for file in (asked.configs / "stacks").glob("*.yaml"))
    rest = [name for name in others if name not in {each.name for each in found}]
    if not found:
        print("no stack is registered")
    if rest:
        print(f"files without a stack: {', '.join(rest)} (python src/stack.py register NAME)")
    print("`zenml stack set NAME` switches (*); `zenml stack set default` trains on this machine")
    return 0


def destroy(asked: StackOptions, *, yes: bool, delete_data: bool) -> int:
    """Take a stack away, on AWS and in ZenML; what was not made for it stays."""
    from ..aws import account as accounts
    from ..aws import names, stack

    names.checked_stack(asked.name)
    client = environment.connect()
    from ..aws.reporting import Done
    from . import registry as registered

    found = registered.find_stack(client, asked.name)
    account = accounts.connect(asked.region or (found.region if found else None))
    if found and found.account != account.id:
        raise UserError(f"stack {asked.name} is of another account than these credentials: AWS_PROFILE chooses others")
    own = names_of(asked.name, account, asked.bucket or (found.bucket if found else None))
    stack.check_deletion(account, own, delete_data)
    print(f"stack {asked.name}: account {account.id}, {account.region}", flush=True)
    if not yes and not _agreed(own, delete_data):
        print("nothing was changed")
        return 1
    stack.remove(account, own, _print)
    skypilot.configuration(asked.name).unlink(missing_ok=True)
    # Last: as long as ZenML knows the stack, the same command finds what it could not take away the first time.
    gone = registered.delete(client, asked.name)
    _print(Done("removed" if gone else "absent", "stack", asked.name, "in ZenML"))
    return 0


def policy(asked: StackOptions, *, setup: bool) -> int:
    """Print the IAM policy that a person needs, as JSON."""
    from ..aws import account as accounts
    from ..aws import names, policies

    names.checked_stack(asked.name)
    file = asked.stack_file() if not asked.region or not asked.bucket else files.StackFile()
    account = accounts.connect(asked.region or file.region)
    own = names_of(asked.name, account, asked.bucket or file.bucket)
    print(json.dumps(policies.setup(own) if setup else policies.person(own), indent=2))
    return 0


def _check_same_place(stack: "Registered", own: "Names") -> None:
    """Refuse to register a stack elsewhere: what it has where it is would be forgotten, and go on costing.

    Raises:
        UserError: the account, the region or the bucket is another one.
    """
    for kind, old, new in (
        ("account", stack.account, own.account),
        ("region", stack.region, own.region),
        ("bucket", stack.bucket, own.bucket),
    ):
        if old != new:
            raise UserError(
                f"stack {stack.name} is registered with {kind} {old}, not {new}: `python src/stack.py destroy "
                f"{stack.name}` first, or take another name (--file {stack.name} has the same settings)"
            )


def _next(asked: StackOptions, names: "Names", file: files.StackFile) -> str:
    machine = "" if file.compute else " compute=4xa10g"
    return "\n".join(
        [
            "next:",
            f"  python src/stack.py check {asked.name}{'' if file.compute else ' --compute 4xa10g'}",
            f"  zenml stack set {asked.name}",
            f"  python src/run.py{machine}",
            f"checkpoints go to {names.store}, unless a run says checkpoint.store=",
        ]
    )


def _agreed(names: "Names", delete_data: bool) -> bool:
    if not sys.stdin.isatty():
        raise UserError("destroy asks first: --yes agrees beforehand")
    data = " and everything in it" if delete_data else ""
    return input(f"delete s3://{names.bucket}{data}, role {names.role}, repository? [y/N] ").strip().lower() == "y"


def _print(thing: object) -> None:
    print(thing, flush=True)
