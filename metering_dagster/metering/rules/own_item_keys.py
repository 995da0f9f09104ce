"""The keys of this project's own items in the aggregated table (domain: the tables). Pure.

Belongs here: how a commit, an identity and an hour's Region are keyed, and how a key that DynamoDB would refuse is
shortened. Does not: what these items hold (the stores that write them).

No such item has `meteringPending`, so no reader of the sparse index meets one.
"""

import hashlib
from typing import NamedTuple

from metering_dagster.metering.rules.raw_row import OURS, GroupKey

MAX_HASH_BYTES, MAX_RANGE_BYTES = 2048, 1024
"""The longest keys that DynamoDB takes, in bytes of UTF-8."""
SHARDS = 16
"""The commits of an hour are spread over so many hash keys: one takes about 1,000 write units a second."""
_DIGEST_BYTES = 16


class OwnKey(NamedTuple):
    """Hash and range key of an item of our own."""

    hash_key: str
    range_key: str


def shorten(text: str, most: int) -> str:
    """Return the text, or, where it has over `most` bytes, its beginning and a digest of all of it."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    digest = hashlib.blake2b(encoded, digest_size=_DIGEST_BYTES).hexdigest()
    head = encoded[: most - len(digest) - 1].decode(errors="ignore")
    return f"{head}~{digest}"


def commit_shard(group: GroupKey) -> int:
    """Return the shard, 0 to 15, under which the commit of a group is filed."""
    digest = hashlib.blake2b(f"{group.license_arn}#{group.prefix}".encode(), digest_size=2).digest()
    return int.from_bytes(digest) % SHARDS


def commit_hash_key(bucket: str, shard: int) -> str:
    """Return the hash key of one shard of an hour's commits."""
    return f"{OURS}commit#{bucket}#{shard:02d}"


def commit_key(group: GroupKey) -> OwnKey:
    """Return the key of a group's commit: filed by hour and shard, so that an hour's commits are found by Query.

    Any part but the account may hold a `#`: the length before it says where the license ends.
    """
    text = f"{len(group.license_arn)}#{group.license_arn}#{group.account}#{group.dimension}"
    return OwnKey(commit_hash_key(group.bucket, commit_shard(group)), shorten(text, MAX_RANGE_BYTES))


def identity_key(product_code: str, customer: str, dimension: str, bucket: str) -> OwnKey:
    """Return the key of the item that holds what the service takes for one record of a legacy product."""
    return OwnKey(
        shorten(f"{OURS}identity#{product_code}", MAX_HASH_BYTES),
        shorten(f"{bucket}#{len(customer)}#{customer}#{dimension}", MAX_RANGE_BYTES),
    )


def region_key(bucket: str) -> OwnKey:
    """Return the key of the item that says to which Region an hour belongs."""
    return OwnKey(f"{OURS}region", bucket)
