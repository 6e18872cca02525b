"""How SkyPilot is told which machines are meant."""

from typing import Any

from ...config import ComputeConfig


def resources(compute: ComputeConfig, *, use_spot: bool | None = None) -> dict[str, Any]:
    """Return the machine as the `resources` of a SkyPilot task.

    Args:
        use_spot: instead of the configuration's.
    """
    cloud, _, rest = (compute.infra or "").partition("/")
    region, _, zone = rest.partition("/")
    region, zone = compute.region or region, compute.zone or zone
    if region or zone:
        cloud = cloud or "*"
    infra = "/".join(part for part in (cloud, region or ("*" if zone else ""), zone) if part)
    found: dict[str, Any] = {
        "infra": infra or None,
        "accelerators": compute.accelerators,
        "instance_type": compute.instance_type,
        "cpus": None if compute.cpus is None else str(compute.cpus),
        "memory": None if compute.memory is None else str(compute.memory),
        "use_spot": bool(compute.use_spot) if use_spot is None else use_spot,
        "disk_size": compute.disk_size,
        "image_id": compute.image_id,
    }
    return {**{key: value for key, value in found.items() if value is not None}, **compute.resources}
