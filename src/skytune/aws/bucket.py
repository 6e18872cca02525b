"""The bucket of a stack: checkpoints, and what else a run keeps on S3.

One that was made here is encrypted, closed to the public, and forgets old checkpoints. One that was there before
belongs to somebody: it is looked at and left as it is.
"""

import json
from typing import Any

from ..common.text import counted, size
from ..config import ConfigError, UserError
from .account import REFUSED, Account, ask, code, owner, tags
from .names import RUNS, Names
from .policies import INSECURE
from .policies import bucket as bucket_policy
from .reporting import Done

RULE, RULE_PARTS = "skytune-old-checkpoints", "skytune-broken-uploads"
"""Our lifecycle rules; rules of others stay."""

CLOSED = {
    "BlockPublicAcls": True,
    "IgnorePublicAcls": True,
    "BlockPublicPolicy": True,
    "RestrictPublicBuckets": True,
}
ENCRYPTED = {"Rules": [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]}
MISSING = {"404", "NoSuchBucket", "NotFound"}
MOST_PAGES = 10
"""Pages of a thousand objects that are counted: more would keep a person waiting."""


def ensure(account: Account, names: Names, keep_days: int) -> Done:
    """Make the bucket, or bring it to what it should be.

    Args:
        keep_days: age in days at which checkpoints are deleted.

    Raises:
        UserError: the name is another account's, the bucket lies in another region, or AWS refuses.
    """
    s3 = account.client("s3")
    place = region_of(account, names.bucket)
    about = f"encrypted, at rest and on its way, not public; checkpoints under {RUNS}/ go after {keep_days} days"
    if place is None:
        where = {} if names.region == "us-east-1" else {"LocationConstraint": names.region}
        s3.create_bucket(Bucket=names.bucket, **({"CreateBucketConfiguration": where} if where else {}))
        s3.get_waiter("bucket_exists").wait(Bucket=names.bucket, WaiterConfig={"Delay": 1, "MaxAttempts": 20})
        s3.put_bucket_tagging(Bucket=names.bucket, Tagging={"TagSet": tags(names.stack)})
        _settle(s3, names, keep_days)
        return Done("made", "bucket", f"s3://{names.bucket}", about)
    if place != names.region:
        raise ConfigError(
            f"--bucket {names.bucket}: lies in {place}, the stack in {names.region}: traffic between regions is slow "
            f"and costs; give --region {place} or another bucket"
        )
    whose = made_for(s3, names.bucket)
    if whose is None and names.bucket != names.own_bucket:
        return Done("found", "bucket", f"s3://{names.bucket}", f"yours, left as it is: {read(account, names.bucket)}")
    if whose not in (None, names.stack):
        return Done("found", "bucket", f"s3://{names.bucket}", f"made for stack {whose}, left as it is")
    changes = _settle(s3, names, keep_days)
    if whose is None:  # the last attempt ended before it was tagged
        s3.put_bucket_tagging(Bucket=names.bucket, Tagging={"TagSet": tags(names.stack)})
        changes.append("tagged")
    if changes:
        return Done("changed", "bucket", f"s3://{names.bucket}", ", ".join(changes))
    return Done("found", "bucket", f"s3://{names.bucket}", about)


def region_of(account: Account, bucket: str) -> str | None:
    """Return the region of a bucket; None if there is no bucket of that name.

    Raises:
        UserError: it is there, and these credentials may not use it.
    """
    from botocore.exceptions import ClientError

    try:
        found = account.client("s3").head_bucket(Bucket=bucket)
    except ClientError as error:
        headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        if code(error) in MISSING:
            return None
        if code(error) in ("301", "PermanentRedirect", "400") and headers.get("x-amz-bucket-region"):
            return str(headers["x-amz-bucket-region"])
        if code(error) in REFUSED:
            _raise_reason(account, bucket)
            raise UserError(
                f"bucket {bucket} is there, but account {account.id} may not use it: another account's? give another "
                "--bucket"
            ) from error
        raise
    headers = found["ResponseMetadata"]["HTTPHeaders"]
    return str(found.get("BucketRegion") or headers.get("x-amz-bucket-region") or account.region)


def _raise_reason(account: Account, bucket: str) -> None:
    """Ask again in a way that S3 answers in words: to HEAD it says 403 for expired keys, too."""
    from botocore.exceptions import ClientError

    try:
        account.client("s3").list_objects_v2(Bucket=bucket, MaxKeys=1)
    except ClientError as error:
        if code(error) not in REFUSED:
            raise


def made_for(s3: Any, bucket: str) -> str | None:
    """Return the stack for which the bucket was made here; None if it was there before."""
    return owner((ask(s3.get_bucket_tagging, "NoSuchTagSet", Bucket=bucket) or {}).get("TagSet", []))


def read(account: Account, bucket: str) -> str:
    """Return what somebody else's bucket is like, in words."""
    s3 = account.client("s3")
    found = []
    if _closed(s3, bucket) != CLOSED:
        found.append("public access is not blocked")
    if not _encryption(s3, bucket):
        found.append("not encrypted")
    if not any(rule.get("Status") == "Enabled" and "Expiration" in rule for rule in _rules(s3, bucket)):
        found.append("nothing is ever deleted")
    return "; ".join(found) or "encrypted, not public, with a lifecycle rule"


def weight(account: Account, bucket: str) -> tuple[int, int, bool]:
    """Return (objects, bytes, whether that is all) of a bucket, of old versions too."""
    s3, count, total = account.client("s3"), 0, 0
    pages = s3.get_paginator("list_object_versions").paginate(Bucket=bucket)
    for number, page in enumerate(pages):
        if number == MOST_PAGES:
            return count, total, False
        count += len(page.get("Versions", [])) + len(page.get("DeleteMarkers", []))
        total += sum(version["Size"] for version in page.get("Versions", []))
    return count, total, True


def describe(count: int, total: int, whole: bool) -> str:
    """Return a bucket's content in words."""
    if not count:
        return "empty"
    return f"{'' if whole else 'more than '}{counted(count, 'object')}, {size(total)}"


def remove(account: Account, names: Names) -> Done:
    """Delete the bucket and all that is in it; one that was not made for this stack stays."""
    s3 = account.client("s3")
    if region_of(account, names.bucket) is None:
        return Done("absent", "bucket", f"s3://{names.bucket}")
    if made_for(s3, names.bucket) != names.stack:
        return Done("kept", "bucket", f"s3://{names.bucket}", "it was not made for this stack")
    about = describe(*weight(account, names.bucket))
    for page in s3.get_paginator("list_multipart_uploads").paginate(Bucket=names.bucket):
        for upload in page.get("Uploads", []):
            s3.abort_multipart_upload(Bucket=names.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=names.bucket):
        old = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
        keys = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in old]
        if keys:
            failed = s3.delete_objects(Bucket=names.bucket, Delete={"Objects": keys, "Quiet": True}).get("Errors", [])
            if failed:
                raise UserError(f"s3://{names.bucket}/{failed[0]['Key']} cannot be deleted: {failed[0].get('Message')}")
    s3.delete_bucket(Bucket=names.bucket)
    return Done("removed", "bucket", f"s3://{names.bucket}", about)


def _settle(s3: Any, names: Names, keep_days: int) -> list[str]:
    """Bring a bucket of ours to what it should be; return what was changed."""
    changes, bucket = [], names.bucket
    if _closed(s3, bucket) != CLOSED:
        s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=CLOSED)
        changes.append("public access blocked")
    if not _encryption(s3, bucket):
        s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration=ENCRYPTED)
        changes.append("encrypted")
    statements, (ours,) = _statements(s3, bucket), bucket_policy(names)["Statement"]
    if ours not in statements:
        others = [each for each in statements if each.get("Sid") != INSECURE]
        policy = {**bucket_policy(names), "Statement": [*others, ours]}
        s3.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))
        changes.append("requests without encryption refused")
    wanted, rules = _wanted_rules(keep_days), _rules(s3, bucket)
    if [rule for rule in rules if rule.get("ID") in (RULE, RULE_PARTS)] != wanted:
        others = [rule for rule in rules if rule.get("ID") not in (RULE, RULE_PARTS)]
        s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [*others, *wanted]})
        changes.append(f"checkpoints go after {keep_days} days")
    return changes


def _wanted_rules(keep_days: int) -> list[dict[str, Any]]:
    parts = {"DaysAfterInitiation": 7}
    return [
        {"ID": RULE, "Filter": {"Prefix": f"{RUNS}/"}, "Status": "Enabled", "Expiration": {"Days": keep_days}},
        {"ID": RULE_PARTS, "Filter": {"Prefix": ""}, "Status": "Enabled", "AbortIncompleteMultipartUpload": parts},
    ]


def _closed(s3: Any, bucket: str) -> dict[str, bool]:
    found = ask(s3.get_public_access_block, "NoSuchPublicAccessBlockConfiguration", Bucket=bucket)
    return dict(found["PublicAccessBlockConfiguration"]) if found else {}


def _encryption(s3: Any, bucket: str) -> str:
    found = ask(s3.get_bucket_encryption, "ServerSideEncryptionConfigurationNotFoundError", Bucket=bucket) or {}
    rules = found.get("ServerSideEncryptionConfiguration", {}).get("Rules")
    return str(rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"]) if rules else ""


def _rules(s3: Any, bucket: str) -> list[dict[str, Any]]:
    found = ask(s3.get_bucket_lifecycle_configuration, "NoSuchLifecycleConfiguration", Bucket=bucket)
    return list(found["Rules"]) if found else []


def _statements(s3: Any, bucket: str) -> list[dict[str, Any]]:
    found = ask(s3.get_bucket_policy, "NoSuchBucketPolicy", Bucket=bucket)
    return list(json.loads(found["Policy"]).get("Statement", [])) if found else []
