"""The log of a job: the next incarnation, and the snapshots that lead to the present state."""

from __future__ import annotations

import pytest

from malstrom_py.errors import SnapshotError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.checkpointer import StoreCheckpointer
from malstrom_py.snapshot.log import (
    JobStart,
    Log,
    LogEntry,
    entry_of,
    history,
    next_incarnation,
    sequences_in,
    start_bytes,
)
from malstrom_py.snapshot.manifest import seal
from malstrom_py.snapshot.store import MemoryStore
from tests.unit.snapshot.taken import JOB, manifest


def id_of(number: int) -> SnapshotId:
    return SnapshotId(f"20261122T0422{number:02}000000Z-1a2b3c4d")


def log_of(*what: str | int) -> list[LogEntry]:
    """A number: a snapshot; "?": a damaged entry; else a start that resumes from there."""
    entries, incarnation = [], 0
    for sequence, one in enumerate(what, 1):
        if one == "?":
            entries.append(LogEntry(sequence, None, "damaged"))
        elif isinstance(one, int):
            made = manifest(id_of(one), JobStart(incarnation, sequence), sequence)
            entries.append(LogEntry(sequence, made))
        else:
            incarnation += 1
            resume = id_of(int(one)) if one.isdigit() else one
            entries.append(LogEntry(sequence, JobStart(incarnation, sequence, resume=resume)))
    return entries


@pytest.mark.parametrize(
    ("what", "numbers"),
    [
        ((), []),
        (("latest",), []),
        (("latest", 1, 2, 3), [4, 3, 2]),
        (("latest", 1, "latest", 2), [4, 2]),
        (("latest", 1, "?", 2), [4, 3, 2]),
        (("latest", 1, "none"), []),
        (("latest", 1, "none", 2, "latest"), [4]),
        (("latest", 1, 2, 3, "1", 4), [6, 2]),
        (("latest", 1, 2, 3, "2", 4, "1"), [2]),
        (("latest", 1, "none", 2, "1", 3), [6, 2]),
        (("latest", 1, "?", "1", "?"), [5, 2]),
        (("latest", 1, 2, "7"), [0]),
    ],
)
def test_the_history_is_what_leads_to_where_the_job_is(what: tuple[str | int, ...], numbers: list[int]) -> None:
    found = list(history(log_of(*what)))
    assert [entry.sequence for entry in found] == numbers
    if numbers == [0]:
        assert f"snapshot {id_of(7)}, from which the job resumed, does not exist" in found[0].fault


def test_s3_incarnations_grow_past_what_cannot_be_read() -> None:
    assert next_incarnation(log_of("latest", "latest", 1)) == 3
    assert next_incarnation(log_of("latest", "?", "?")) == 4
    assert next_incarnation(log_of("?", "?")) == 3


def test_a_claim_comes_back_as_it_was() -> None:
    claim = JobStart(3, 12, resume="none", created="2026-11-22T04:22:42+00:00", token="ab")
    assert entry_of(start_bytes(claim, JOB), job=JOB, sequence=12) == LogEntry(12, claim)


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"incarnation": 0}, {"incarnation": True}, {"token": None}, {"colour": "red"}, {"job": "x"}],
)
def test_what_is_no_claim_is_refused(change: dict[str, object]) -> None:
    fields = {
        "format": 1, "kind": "claim", "job": JOB, "sequence": 12, "incarnation": 3, "created": "", "resume": "latest",
        "token": "",
    }  # fmt: skip
    assert entry_of(seal(fields), job=JOB, sequence=12).fault == ""
    assert entry_of(seal({**fields, **change}), job=JOB, sequence=12).fault.startswith("log/000000000012.json: ")


@pytest.mark.parametrize("kind", ["snapshot", None, 7])
def test_an_entry_of_another_kind_is_refused(kind: object) -> None:
    assert entry_of(seal({"format": 1, "kind": kind}), job=JOB, sequence=1).fault


def test_what_is_no_entry_is_left_out() -> None:
    paths = ["log/000000000002.json", "log/000000000010.json", "log/3.json", "log/000000000004.json.ab.part", "_latest"]
    assert sequences_in(paths) == [2, 10]


def test_an_entry_that_was_pruned_meanwhile_is_left_out() -> None:
    store = MemoryStore()
    log = Log(store, JOB)
    assert log.append(1, start_bytes(JobStart(1, 1), JOB))
    assert log.read(2) is None
    assert [entry.sequence for entry in log.entries()] == [1]


class Replacing(MemoryStore):
    """A store that replaces existing entries."""

    def create(self, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True


def test_s3_a_store_that_replaces_entries_is_refused() -> None:
    with pytest.raises(SnapshotError, match="Use a store that has conditional writes"):
        StoreCheckpointer(Replacing(), JOB).claim(0.0)
