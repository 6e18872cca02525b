"""The whole pipeline on a machine of ZenML's own orchestrators: what they are told, what is refused. No engine runs."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("zenml")

from zenml.enums import StackComponentType as Kind
from zenml.utils.pipeline_docker_image_builder import PipelineDockerImageBuilder

from skytune.config import ComputeConfig, ConfigError, RunConfig, UserError, from_dict
from skytune.pipelines import running
from skytune.stacks import whole
from skytune.steps import parameters
from skytune.steps.load_data import load_data


@dataclass
class Client:
    """As much of ZenML's client as is asked: the active stack."""

    flavor: str = "vm_aws"
    operator: bool = False
    configuration: dict[str, Any] = field(default_factory=dict)

    @property
    def active_stack_model(self) -> Any:
        orchestrator = SimpleNamespace(name="theirs", flavor_name=self.flavor, configuration=self.configuration)
        components = {Kind.ORCHESTRATOR: [orchestrator]}
        if self.operator:
            components[Kind.STEP_OPERATOR] = [SimpleNamespace(name="ours", flavor_name="skypilot")]
        return SimpleNamespace(name="server", components=components)


def config(**compute: Any) -> RunConfig:
    return from_dict(RunConfig, {"compute": compute})


def test_at_home_nothing_is_said() -> None:
    assert whole.pipeline_settings(Client("local"), config(accelerators="A10G:4")) == {}  # type: ignore[arg-type]


def test_what_compute_says_is_said_of_the_one_machine() -> None:
    sky = pytest.importorskip("zenml.integrations.skypilot.flavors.skypilot_orchestrator_base_vm_config")
    asked = config(
        accelerators="A10G:4",
        infra="aws/us-east-1",
        use_spot=True,
        disk_size=300,
        idle_minutes_to_autostop=5,
        resources={"disk_tier": "best"},
    )
    found = whole.pipeline_settings(Client(), asked)["orchestrator.vm_aws"]  # type: ignore[arg-type]
    assert found == {
        "accelerators": "A10G:4",
        "region": "us-east-1",
        "use_spot": True,
        "disk_size": 300,
        "idle_minutes_to_autostop": 5,
        "docker_run_args": ["--gpus=all", "--shm-size=8g"],
        "resources_settings": {"disk_tier": "best"},
    }
    taken = sky.SkypilotBaseOrchestratorSettings(**found)
    assert set(found) <= set(type(taken).model_fields), "ZenML ignores other keys without a word"
    assert whole.machine(ComputeConfig()) == {}


def test_with_our_step_operator_the_machine_is_the_training_steps() -> None:
    for asked in (config(accelerators="A10G:4", num_nodes=2), config(instance_type="g5.12xlarge")):
        found = whole.pipeline_settings(Client(operator=True), asked)  # type: ignore[arg-type]
        assert list(found) == ["docker"] and found["docker"].dockerfile.endswith("Dockerfile.cpu")


def test_a_machine_by_name_needs_to_be_said_to_have_gpus() -> None:
    with pytest.raises(
        ConfigError, match=r"instance_type=g5\.12xlarge: .* compute\.device=cuda or compute\.device=cpu"
    ):
        whole.machine(ComputeConfig(instance_type="g5.12xlarge"))
    assert "docker_run_args" in whole.machine(config(instance_type="g5.12xlarge", device="cuda").compute)
    assert "docker_run_args" not in whole.machine(config(instance_type="m5.large", device="cpu").compute)


def test_several_nodes_would_each_run_everything() -> None:
    with pytest.raises(ConfigError, match=r"compute\.num_nodes=2: .*whole pipeline on every node; a step operator"):
        whole.machine(ComputeConfig(num_nodes=2))


@pytest.mark.parametrize(("cuda", "file"), [(True, "Dockerfile"), (False, "Dockerfile.cpu")], ids=["cuda", "cpu"])
def test_the_image_is_ours_with_pinned_packages(cuda: bool, file: str) -> None:
    settings = whole.docker_settings(cuda=cuda)
    assert settings.dockerfile is not None and settings.build_context_root is not None
    assert Path(settings.dockerfile).name == file and (Path(settings.build_context_root) / "constraints.txt").is_file()
    assert settings.parent_image_build_config is not None
    assert settings.parent_image_build_config.build_options is not None
    given = settings.parent_image_build_config.build_options.build_args or {}
    text = Path(settings.dockerfile).read_text()
    assert all(re.search(rf"^ARG {name}=", text, re.MULTILINE) for name in given)
    assert {"train", "orchestrate", "aws"} <= set(given["EXTRAS"].split(","))
    lines = PipelineDockerImageBuilder._generate_zenml_pipeline_dockerfile("ours", settings).splitlines()
    assert lines[0] == "FROM ours" and lines[-1] == "USER trainer"
    assert not [line for line in lines if "install" in line and "uv" not in line and "apt-get" not in line]


OWN = {"orchestrator.vm_aws": {"accelerators": "A10G:4"}}


def test_a_step_that_zenml_would_lose_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zenml.client.Client", Client)
    step = load_data.with_options(settings={"orchestrator": {"instance_type": "g5.12xlarge"}})
    with pytest.raises(
        UserError, match=r"step load_data has settings of its own .* theirs \(vm_aws\): ZenML takes its"
    ):
        parameters.on(step, config())
    assert parameters.on(load_data, config()).name == "load_data"


def test_settings_of_a_step_that_lose_nothing_are_none_of_ours() -> None:
    whole.refuse_lost(Client("local"), "x", OWN)  # type: ignore[arg-type]
    whole.refuse_lost(Client(configuration={"disable_step_based_settings": True}), "x", OWN)  # type: ignore[arg-type]
    whole.refuse_lost(Client(), "x", {"docker": {}, "step_operator.skypilot": {}})  # type: ignore[arg-type]


def test_where_the_pipeline_runs_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        running._say_where(Client(), config(device="cuda", use_spot=True))  # type: ignore[arg-type]
    assert caplog.messages == [
        "stack server: all steps run on one machine of the orchestrator's; it is a spot machine, which nobody replaces"
    ]


def test_the_pipeline_takes_its_settings() -> None:
    settings = whole.pipeline_settings(Client(), config(instance_type="m5.large", device="cpu"))  # type: ignore[arg-type]
    given = running.training.with_options(settings=settings).configuration.settings
    assert {"docker", "orchestrator.vm_aws"} <= set(given)
    assert not running.training.configuration.settings, "the next run on another stack knows nothing of it"
