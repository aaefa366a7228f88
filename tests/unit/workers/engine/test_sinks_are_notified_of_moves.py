"""R4 for sinks: a writer is notified of each move before it gets a row of after it.

Sinks that order the rows of several workers (`sinks.Postgres` in an upsert, `sinks.Kafka`, `sinks.RedisStream`,
`sinks.Memory`) have nothing but that number: without it the older row of a key that has moved may be the one kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sources
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerInfo


class ByVersion:
    """A transactional sink that orders rows by the version of the routing table, and then by their writer alone."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        """Version, worker, number in the worker, value."""
        self.seen: dict[int, list[int]] = {}
        """The versions of which the writer of a worker was notified."""

    def open(self, worker: WorkerInfo) -> VersionWriter:
        return VersionWriter(self, worker.worker)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        self.rows += [tuple(row) for payload in payloads for row in json.loads(payload)]

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        pass

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        pass


class VersionWriter:
    def __init__(self, sink: ByVersion, worker: int) -> None:
        self.sink, self.worker, self.version, self.rows = sink, worker, 0, list[Any]()

    def write(self, batch: Batch) -> None:
        for value in batch.values:
            self.rows.append((self.version, self.worker, len(self.rows), value))

    def moved(self, version: int) -> None:
        assert version >= self.version
        if version > self.version:
            self.sink.seen.setdefault(self.worker, []).append(version)
        self.version = version

    def pre_commit(self, context: CommitContext) -> bytes:
        rows, self.rows = self.rows, []
        return json.dumps(rows).encode()

    def close(self) -> None:
        pass


PARTS, KEYS = 4, 8
"""All rows of a key are of one part, so their order is known."""


def written(group: int, seed: int) -> ByVersion:
    """Run a job with rescales, and one commit at its end."""
    sink, job = ByVersion(), mp.Job("moves")
    numbers: Any = job.source("in", sources.Memory(range(400), parts=PARTS))
    if group == KEYS:
        numbers = numbers.key_by("key", lambda n: n % KEYS)
    numbers.sink("out", sink)
    mp.Simulation(2, seed=seed, rescales=4, crashes=0, batch=mp.Batching(rows_max=3), snapshots=False).run(job)
    return sink


@pytest.mark.parametrize("group", [PARTS, KEYS], ids=["parts", "keys"])
def test_r4_rows_ordered_by_version_and_then_by_writer_are_in_their_order(group: int) -> None:
    for seed in range(8):
        rows = sorted(written(group, seed).rows)
        for one in range(group):
            assert [value for *_, value in rows if value % group == one] == list(range(one, 400, group)), f"seed {seed}"


@pytest.mark.parametrize("group", [PARTS, KEYS], ids=["parts", "keys"])
def test_r4_a_writer_is_notified_of_moves_in_which_it_neither_sends_nor_gets_anything(group: int) -> None:
    moves = 0
    for seed in range(8):
        for worker, versions in written(group, seed).seen.items():
            assert versions == list(range(versions[0], versions[-1] + 1)), f"worker {worker}, seed {seed}"
            moves += len(versions)
    assert moves > 100
