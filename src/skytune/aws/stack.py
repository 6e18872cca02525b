"""A whole stack on AWS: made, priced at rest, taken away; line by line."""

from collections.abc import Callable

from ..common.text import size
from ..config import UserError
from . import bucket, repository, role
from . import sagemaker as jobs
from .account import Account, spoken
from .names import Names
from .reporting import Done

GB_MONTH_S3, GB_MONTH_ECR = 0.023, 0.10
"""US dollars for a gigabyte and a month in us-east-1, by AWS's public price lists; other regions differ by a third."""

Say = Callable[[object], None]


def ensure(account: Account, names: Names, keep_days: int, say: Say, *, sagemaker: bool = False) -> list[Done]:
    """Make what is missing on AWS, say each thing as it is done, and return what was done.

    Raises:
        UserError: AWS refuses, or a name is taken; the same command goes on from there.
    """
    done: list[Done] = []
    with spoken(names.stack):
        for make in (
            lambda: [bucket.ensure(account, names, keep_days)],
            lambda: role.ensure(account, names),
            lambda: role.ensure_sagemaker(account, names) if sagemaker else [],
            lambda: [repository.ensure(account, names)],
        ):
            for each in make():
                say(each)
                done.append(each)
    return done


def at_rest(account: Account, names: Names) -> str:
    """Return what the stack costs while nothing runs."""
    with spoken(names.stack):
        count, stored, whole = bucket.weight(account, names.bucket)
        kept = repository.weight(account, names.repository)
    usd = stored / 1e9 * GB_MONTH_S3 + kept / 1e9 * GB_MONTH_ECR
    return (
        f"at rest about ${usd:.2f} a month: bucket {bucket.describe(count, stored, whole)} at ${GB_MONTH_S3} per GB, "
        f"images {size(kept) if kept else 'none'} at ${GB_MONTH_ECR:.2f} per GB; role and profile are free, and no "
        "machine runs between jobs"
    )


def check_deletion(account: Account, names: Names, delete_data: bool) -> None:
    """Refuse to take a stack away under which machines run, or that holds data.

    Raises:
        UserError: with what is there and the way out.
    """
    with spoken(names.stack):
        running = role.machines(account, names)
        if running:
            raise UserError(
                f"stack {names.stack}: machines still run with its role ({', '.join(running)}): `sky status` names "
                "their clusters, `sky down NAME` ends them"
            )
        if delete_data:
            return
        held = []
        if bucket.region_of(account, names.bucket) and _ours(account, names):
            count, stored, whole = bucket.weight(account, names.bucket)
            if count:
                held.append(f"s3://{names.bucket} holds {bucket.describe(count, stored, whole)}")
        if repository.read(account, names.repository):
            images = repository.images(account, names.repository)
            if images:
                held.append(f"{names.repository} holds {repository.describe(account, names)}")
    if held:
        raise UserError(f"stack {names.stack}: {'; '.join(held)}: --delete-data deletes it for good")


def remove(account: Account, names: Names, say: Say) -> None:
    """Take everything of the stack away, and say so line by line; what was not made for it stays."""
    with spoken(names.stack):
        for take in (
            lambda: jobs.remove(account, names) if role.exists(account, names.sagemaker_role) else [],
            lambda: [bucket.remove(account, names)],
            lambda: role.remove(account, names),
            lambda: [repository.remove(account, names)],
        ):
            for each in take():
                say(each)


def _ours(account: Account, names: Names) -> bool:
    return bucket.made_for(account.client("s3"), names.bucket) == names.stack
