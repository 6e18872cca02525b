"""`python src/stack.py check`: would a run on a stack get its machine now, and at what price?"""

import time
from typing import TYPE_CHECKING

from ..aws import skypilot
from ..common.background import Pending
from ..common.findings import Finding, Level
from ..config import ConfigError, UserError
from ..launch.remote.machine import SIZE
from ..stacks import environment, files
from ..stacks.options import StackOptions, described, names_of, settings_of
from .report import line

if TYPE_CHECKING:
    from ..stacks.registry import Registered


def check(asked: StackOptions) -> int:
    """Say whether a run on the stack would get its machine now; return 1 if not."""
    from ..aws import account as accounts
    from ..aws import names, preflight

    names.checked_stack(asked.name)
    started = time.monotonic()
    machine = files.machine(asked.configs, asked.compute)
    stored = Pending(lambda: _registered(asked.name))  # importing ZenML and asking AWS take their time together
    file = asked.stack_file() if (asked.configs / "stacks" / f"{asked.name}.yaml").is_file() or asked.file else None
    found = stored.wait(seconds=60)
    if found is None and file is None:
        raise ConfigError(f"stack {asked.name}: neither registered nor a file; `python src/stack.py list` names all")
    region = asked.region or (found.region if found else file.region if file else None)
    counts = dict.fromkeys(Level, 0)

    def show(finding: Finding) -> None:
        counts[finding.level] += 1
        print(line(finding), flush=True)

    way = f"`python src/stack.py register {asked.name}`"
    show(
        Finding(Level.ok, "stack", described(found))
        if found
        else Finding(Level.fail, "stack", f"{asked.name} is not registered in ZenML", way)
    )
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
    base = dict(found.settings) if found else settings_of(asked, file or files.StackFile())
    if machine:
        base = {key: value for key, value in base.items() if key not in SIZE}
    base.update(machine)
    if asked.spot is not None:
        base["use_spot"] = asked.spot
    own = names_of(asked.name, account, asked.bucket or (found.bucket if found else file.bucket if file else None))
    until = max(started + asked.timeout, time.monotonic() + preflight.LEAST_SECONDS)
    for finding in preflight.examine(account, own, base, any(base.get(key) for key in SIZE), until):
        show(finding)
    return _verdict(counts, asked, started)


def _registered(name: str) -> "Registered | None":
    client = environment.connect()
    from ..stacks import registry as registered

    return registered.find_stack(client, name)


def _verdict(counts: dict[Level, int], asked: StackOptions, started: float) -> int:
    seconds = f"({time.monotonic() - started:.1f} s)"
    if counts[Level.fail]:
        print(f"\nno go: {counts[Level.fail]} of these must be put right first (FAIL) {seconds}")
        return 1
    print(f"\ngo: zenml stack set {asked.name} && python src/run.py {seconds}")
    return 0
