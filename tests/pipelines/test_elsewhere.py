"""A stack with the step operator, seen from the command, as far as that goes without SkyPilot (tests/aws goes on)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REGISTER = """
import json, sys
from pathlib import Path
source, settings = sys.argv[1], json.loads(sys.argv[2])
sys.path.insert(0, source)
from skytune.stacks import environment
environment.prepare(Path(source))
client = environment.connect()
from skytune.stacks.flavor import register
for _ in range(2):
    register(client, "cloud", settings)
register(client, "cloud", {"infra": "aws", "use_spot": True}, store="file:///stacks-own")
component = client.get_stack("cloud").components
print(json.dumps({str(kind): [each.configuration for each in found] for kind, found in component.items()}))
client.activate_stack("cloud")
"""


@pytest.fixture(scope="module")
def checkout(new_checkout: Callable[[], Any]) -> Any:
    made = new_checkout(warm=True)
    made.env["ZENML_REPOSITORY_PATH"] = str(made.source)
    return made


@pytest.fixture(scope="module")
def registered(checkout: Any) -> dict[str, Any]:
    """What stands in ZenML's store after a stack was registered three times, the last time with other settings."""
    settings = {"infra": "aws/us-east-1", "instance_type": "m5.large", "disk_tier": "best"}
    done = checkout.python("-c", REGISTER, str(checkout.source / "src"), json.dumps(settings))
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return found


def test_a_stack_is_registered_once_and_brought_up_to_date(registered: dict[str, Any]) -> None:
    (operator,) = registered["step_operator"]
    held = {key: value for key, value in operator.items() if value}
    assert held == {"infra": "aws", "use_spot": True, "store": "file:///stacks-own"}


def test_on_such_a_stack_the_operator_takes_the_training_step_and_its_errors_come_back(
    checkout: Any, registered: dict[str, Any], small: list[str], tmp_path: Path
) -> None:
    done = checkout.run(*small, f"checkpoint.store={tmp_path}")
    assert done.code == 1, done.out + done.err
    assert "stack cloud: the training step's workers go to machines that SkyPilot brings up" in done.out
    assert f"error: checkpoint.store={tmp_path}: is on this machine, the workers run on others" in done.err
    assert "Traceback" not in done.out + done.err
    assert checkout.statuses() == {"load_data": "completed", "train_model": "failed"}


def test_a_run_that_names_no_store_takes_the_stacks(
    checkout: Any, registered: dict[str, Any], small: list[str]
) -> None:
    done = checkout.run(*small)
    assert done.code == 1, done.out + done.err
    assert "checkpoints go to the stack's store, file:///stacks-own (checkpoint.store= names another)" in done.out
    assert "error: checkpoint.store=file:///stacks-own: is on this machine" in done.err


def test_without_it_machines_are_refused_with_the_command_that_registers_a_stack(
    new_checkout: Callable[[], Any], small: list[str], tmp_path: Path
) -> None:
    checkout = new_checkout()
    (tmp_path / "empty.csv").write_text("Satz,Urteil\n")
    words = [*small, f"data.train={tmp_path / 'empty.csv'}", "compute=4xt4"]
    done = checkout.run(*words)
    assert (done.code, done.err) == (
        1,
        "error: compute.accelerators=T4:4: the stack default brings no machines up. `python src/stack.py register aws` "
        "registers one that does, `zenml stack set aws` chooses it; compute.local=true beside it computes on this "
        "machine\n",
    )
    followed = checkout.run(*words, "compute.local=true")
    assert "empty.csv" in followed.err and "compute" not in followed.err, "it came as far as the data"
