"""The whole pipeline on one machine that ZenML's own SkyPilot orchestrators bring up (`vm_aws`, `vm_gcp`, ...).

What `compute` says of a machine is then said of that one, unless the stack also has our step operator, which brings
machines for the training step from inside it. Seen in ZenML 0.84 to 0.98: a step with settings of its own for such an
orchestrator gets a machine that is taken down as soon as the step is submitted, and counts as completed. That is
refused. The container gets the pinned packages of `docker/`.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenml.config import DockerSettings
from zenml.config.docker_settings import DockerBuildConfig, DockerBuildOptions

from ..config import ComputeConfig, ConfigError, Device, RunConfig, UserError
from ..launch.skypilot import merged
from ..launch.skypilot.machine import resources
from .flavor import operator_of
from .versions import checkout

if TYPE_CHECKING:
    from zenml.client import Client
    from zenml.models import ComponentResponse

FLAVORS = "vm_"
"""How the names of ZenML's flavors begin."""

EXTRAS = "train,orchestrate,aws,demo"
"""What a container needs that runs a pipeline."""

DOCKER_RUN = ["--gpus=all", "--shm-size=8g"]
"""For a machine with GPUs; ZenML's own command gives the container none."""


def orchestrator_of(client: "Client") -> "ComponentResponse":
    """Return the active stack's orchestrator."""
    from zenml.enums import StackComponentType

    found: ComponentResponse = client.active_stack_model.components[StackComponentType.ORCHESTRATOR][0]
    return found


def brings_machine(client: "Client") -> bool:
    """Whether the active stack runs the whole pipeline on a machine of its own."""
    return orchestrator_of(client).flavor_name.startswith(FLAVORS)


def pipeline_settings(client: "Client", config: RunConfig) -> dict[str, Any]:
    """Return ZenML's settings of the whole pipeline: none where it runs here.

    Raises:
        ConfigError: several nodes, each of which would run the whole pipeline; a machine by name, of which nobody says
            whether it has GPUs.
    """
    found = orchestrator_of(client)
    if found.flavor_name == "local":
        return {}
    if operator_of(client, config.compute) is not None:  # GPUs are those of the training step's own machines
        return {"docker": docker_settings(cuda=False)}
    settings: dict[str, Any] = {"docker": docker_settings(cuda=_on_gpus(config.compute))}
    if brings_machine(client):
        settings[f"orchestrator.{found.flavor_name}"] = machine(config.compute)
    return settings


def machine(compute: ComputeConfig) -> dict[str, Any]:
    """Return what `compute` says of a machine as settings of ZenML's orchestrator.

    Raises:
        ConfigError: several nodes.
    """
    if (compute.num_nodes or 1) > 1:
        raise ConfigError(
            f"compute.num_nodes={compute.num_nodes}: ZenML's orchestrator would run the whole pipeline on every node; "
            "a step operator of the flavor skypilot in the stack runs the training step alone on them"
        )
    found = resources(replace(merged({}, compute), resources={}))
    if compute.resources:
        found["resources_settings"] = dict(compute.resources)
    region, _, zone = str(found.pop("infra", "")).partition("/")[2].partition("/")
    found |= {key: value for key, value in (("region", region), ("zone", zone)) if value not in ("", "*")}
    if not found["use_spot"]:
        del found["use_spot"]
    if compute.idle_minutes_to_autostop is not None:
        found["idle_minutes_to_autostop"] = compute.idle_minutes_to_autostop
    if _on_gpus(compute):
        found["docker_run_args"] = list(DOCKER_RUN)
    return found


def docker_settings(*, cuda: bool) -> DockerSettings:
    """Return how ZenML builds the image that the pipeline runs in: ours of `docker/`, and the code.

    Args:
        cuda: whether it holds CUDA's libraries.
    """
    root = checkout()
    if root is None:
        raise UserError("an image is built from a checkout (docker/, constraints.txt); here skytune is a wheel")
    # ZenML adds a layer to ours, which takes root; it ends with the user.
    options = DockerBuildOptions(build_args={"EXTRAS": EXTRAS, "RUN_AS": "root"})
    return DockerSettings(
        dockerfile=str(root / "docker" / ("Dockerfile" if cuda else "Dockerfile.cpu")),
        build_context_root=str(root),
        parent_image_build_config=DockerBuildConfig(
            build_options=options, dockerignore=str(Path(root) / ".dockerignore")
        ),
        # All is pinned in the image; ZenML's own lists would install other versions over it.
        install_stack_requirements=False,
        install_deployment_requirements=False,
        apt_packages=["openssh-client", "rsync"],  # what SkyPilot takes, where our step operator is in the stack
        user="trainer",
    )


def refuse_lost(client: "Client", name: str, settings: dict[str, Any]) -> None:
    """Refuse a step whose own settings would make ZenML run it where it is lost.

    Args:
        client: ZenML's.
        name: the step's.
        settings: the step's own, by component.

    Raises:
        UserError: with the way out.
    """
    if not any(key.split(".")[0] == "orchestrator" for key in settings):
        return
    found = orchestrator_of(client)
    if found.flavor_name.startswith(FLAVORS) and not found.configuration.get("disable_step_based_settings"):
        raise UserError(
            f"step {name} has settings of its own for the orchestrator {found.name} ({found.flavor_name}): ZenML takes "
            "its machine down as soon as the step is submitted, and calls it completed; a step operator of the flavor "
            "skypilot in the stack runs it on machines of its own, or `zenml orchestrator update "
            f"{found.name} --disable_step_based_settings=true` runs all steps on one"
        )


def _on_gpus(compute: ComputeConfig) -> bool:
    if compute.instance_type and compute.device is Device.auto:
        raise ConfigError(
            f"compute.instance_type={compute.instance_type}: whether the container of ZenML's orchestrator gets GPUs "
            "has to be said: compute.device=cuda or compute.device=cpu"
        )
    return compute.device is Device.cuda or (compute.device is Device.auto and bool(compute.accelerators))
