"""The secret of a job."""

from __future__ import annotations

import pickle

from malstrom_py.workers.transport.base import JobSecret


def test_each_is_another() -> None:
    assert len({JobSecret.new().key for _ in range(10)}) == 10


def test_it_travels_and_gives_the_same_at_both_ends() -> None:
    secret = JobSecret.new()
    there = pickle.loads(pickle.dumps(secret))
    assert there == secret
    assert there.derive("stream") == secret.derive("stream") != JobSecret.new().derive("stream")


def test_it_does_not_show() -> None:
    secret = JobSecret(b"s3cret" * 5)
    assert "s3cret" not in f"{secret} {secret!r}"
    assert b"s3cret" not in secret.derive("call")
