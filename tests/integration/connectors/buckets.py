"""Buckets of the S3 of the tests."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from malstrom_py.object_stores import Bucket
from tests.servers import ACCESS_KEY, SECRET_KEY, make_folders


@dataclass(frozen=True)
class TestBucket:
    """A new bucket; ``options`` are what a store needs to reach it."""

    __test__ = False

    url: str
    options: dict[str, str]

    @property
    def objects(self) -> Bucket:
        """The objects in it."""
        return Bucket(self.url, self.options)

    def keys(self, prefix: str = "") -> list[str]:
        """The keys that begin with ``prefix``."""
        return [key for key, _ in self.objects.list(prefix)]


def new_bucket(address: str) -> TestBucket:
    """Make a bucket in the S3 at ``address``."""
    name = f"test-{uuid.uuid4().hex}"
    make_folders(address, name)
    return TestBucket(f"s3://{name}", options_of(address))


def options_of(address: str) -> dict[str, str]:
    """Return what a store needs to reach the S3 at ``address``."""
    return {
        "endpoint": address,
        "allow_http": "true",
        "region": "us-east-1",
        "access_key_id": ACCESS_KEY,
        "secret_access_key": SECRET_KEY,
        "timeout": "60s",
    }
