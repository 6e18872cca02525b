"""The repository of a stack for Docker images (`docker/`), in ECR. A stack without images pays nothing for it."""

import json
from typing import Any

from ..common.text import counted, size
from .account import Account, ask, owner, tags
from .names import Names
from .reporting import Done

KEPT = 5
"""Images that are kept; an image with CUDA is several gigabytes."""

RULES = {
    "rules": [
        {
            "rulePriority": 1,
            "description": f"skytune: the newest {KEPT} images",
            "action": {"type": "expire"},
            "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": KEPT},
        },
    ]
}


def ensure(account: Account, names: Names) -> Done:
    """Make the repository; one that is there stays as it is."""
    ecr = account.client("ecr")
    found = read(account, names.repository)
    if found is None:
        found = ecr.create_repository(
            repositoryName=names.repository,
            tags=tags(names.stack),
            imageScanningConfiguration={"scanOnPush": True},
            encryptionConfiguration={"encryptionType": "AES256"},
        )["repository"]
        ecr.put_lifecycle_policy(repositoryName=names.repository, lifecyclePolicyText=json.dumps(RULES))
        return Done("made", "repository", found["repositoryUri"], f"scanned on push, keeps {KEPT} images")
    return Done("found", "repository", found["repositoryUri"], describe(account, names))


def read(account: Account, name: str) -> dict[str, Any] | None:
    """Return what ECR says of a repository; None if it has none of that name."""
    found = ask(account.client("ecr").describe_repositories, "RepositoryNotFoundException", repositoryNames=[name])
    return dict(found["repositories"][0]) if found else None


def images(account: Account, name: str) -> list[dict[str, Any]]:
    """Return what ECR says of every image of a repository."""
    pages = account.client("ecr").get_paginator("describe_images").paginate(repositoryName=name)
    return [image for page in pages for image in page["imageDetails"]]


def weight(account: Account, name: str) -> int:
    """Return the bytes of all images of a repository."""
    return sum(image.get("imageSizeInBytes") or 0 for image in images(account, name))


def describe(account: Account, names: Names) -> str:
    """Return a repository's content in words."""
    found = images(account, names.repository)
    total = sum(image.get("imageSizeInBytes") or 0 for image in found)
    return f"{counted(len(found), 'image')}, {size(total)}" if found else "empty"


def remove(account: Account, names: Names) -> Done:
    """Delete the repository and its images; one that was not made for this stack stays."""
    ecr, found = account.client("ecr"), read(account, names.repository)
    if found is None:
        return Done("absent", "repository", names.repository)
    if owner(ecr.list_tags_for_resource(resourceArn=found["repositoryArn"])["tags"]) != names.stack:
        return Done("kept", "repository", names.repository, "it was not made for this stack")
    about = describe(account, names)
    ecr.delete_repository(repositoryName=names.repository, force=True)
    return Done("removed", "repository", names.repository, about)
