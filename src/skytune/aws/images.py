"""The images that machines start from: are they where the machines are?"""

from ..common.findings import Finding, Level
from . import catalog
from .account import Account, ask


def check(account: Account, wanted: str, gpus: bool) -> Finding:
    """Is there the image that machines start from?

    Args:
        wanted: `image_id` of the machine: an AMI, `docker:IMAGE`, a tag of SkyPilot's, or nothing for SkyPilot's own.
        gpus: whether the machine has GPUs, for which SkyPilot has another image.
    """
    if wanted.startswith("docker:"):
        return _docker_image(account, wanted.removeprefix("docker:"))
    name = wanted or (catalog.GPU_IMAGE if gpus else catalog.CPU_IMAGE)
    found = wanted if wanted.startswith("ami-") else catalog.image(name, account.region, catalog.fetch())
    way = "take another image_id, or none: SkyPilot's own"
    if found is None:
        return Finding(Level.fail, "image", f"{name}: SkyPilot's list has none for {account.region}", way)
    filters = [{"Name": "image-id", "Values": [found]}]
    there = account.client("ec2").describe_images(Filters=filters)["Images"]
    if not there or there[0].get("State", "available") != "available":
        state = there[0]["State"] if there else "not there"
        return Finding(Level.fail, "image", f"{name} ({found}) is {state} in {account.region}", way)
    return Finding(Level.ok, "image", f"{found} ({name})" if name != found else found)


def _docker_image(account: Account, name: str) -> Finding:
    registry, _, rest = name.partition("/")
    if ".dkr.ecr." not in registry:
        return Finding(
            Level.warn, "image", f"{name}: only ECR is asked", "`docker manifest inspect` asks other registries"
        )
    repo, _, tag = rest.partition(":")
    where = registry.split(".")[3]
    asked = {"registryId": registry.split(".")[0], "repositoryName": repo, "imageIds": [{"imageTag": tag or "latest"}]}
    ecr = account.client("ecr", where)
    if ask(ecr.describe_images, "ImageNotFoundException", "RepositoryNotFoundException", **asked) is None:
        way = f"build it (docker/Dockerfile) and `docker push {name}`"
        return Finding(Level.fail, "image", f"there is no {name}", way)
    note = "" if where == account.region else f"; it lies in {where}, pulling from there costs"
    return Finding(Level.ok, "image", f"{name}{note}")
