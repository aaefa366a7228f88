"""The log of a job: its snapshots and its starts, each under the next number; entries are never replaced.

Rule: of two starts of a job, the one that creates the next entry wins. A start takes a number itself (a `JobStart`,
stored as a *claim*). An older start that still runs then finds the number of its next snapshot taken, permanently. So
claims, and entries that cannot be read, are never removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from malstrom_py.errors import SnapshotError
from malstrom_py.snapshot.manifest import FORMAT, Manifest, check_format, manifest_of, open_seal, seal, strict_form
from malstrom_py.snapshot.store import Store, is_lost

FOLDER: Final = "log"
CLAIM: Final = "claim"
LATEST: Final = "latest"
NONE: Final = "none"

_NAME = re.compile(rf"{FOLDER}/(\d{{12}})\.json", re.ASCII)


@dataclass(frozen=True, slots=True)
class JobStart:
    """A start of the job, which fences off earlier starts. Its next snapshot has the number ``sequence + 1``.

    ``resume``: the snapshot to resume from: "latest", "none" or an id. ``token``: a random text that makes the entry
    unique. ``created``: ISO 8601, UTC.
    """

    incarnation: int
    sequence: int
    resume: str = LATEST
    created: str = ""
    token: str = ""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the log. ``content`` is None if it cannot be read; ``fault`` is the reason."""

    sequence: int
    content: Manifest | JobStart | None
    fault: str = ""

    @property
    def manifest(self) -> Manifest | None:
        """The manifest, if the entry is a snapshot."""
        return self.content if isinstance(self.content, Manifest) else None


def path_of(sequence: int) -> str:
    """Return the path of an entry, relative to the folder of the job.

    >>> path_of(12)
    'log/000000000012.json'
    """
    return f"{FOLDER}/{sequence:012}.json"


def sequences_in(paths: Sequence[str]) -> list[int]:
    """Return the sorted numbers of the entries among ``paths``, which are relative to the folder of the job."""
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, paths) if found)


def start_bytes(claim: JobStart, job: str) -> bytes:
    """Encode a start as an entry of the log."""
    return seal(
        {
            "format": FORMAT,
            "kind": CLAIM,
            "job": job,
            "sequence": claim.sequence,
            "incarnation": claim.incarnation,
            "created": claim.created,
            "resume": claim.resume,
            "token": claim.token,
        }
    )


def entry_of(data: bytes, *, job: str, sequence: int) -> LogEntry:
    """Decode entry ``sequence`` of ``job``; the entry has a ``fault`` if the bytes are damaged or of another entry."""
    try:
        stored = open_seal(data)
        content = _start_of(stored) if stored.get("kind") == CLAIM else manifest_of(stored)
        if stored["job"] != job:
            raise ValueError(f"it is of job {stored['job']!r}")
        if content.sequence != sequence:
            raise ValueError(f"it is entry {content.sequence} of the log")
    except ValueError as error:
        return LogEntry(sequence, None, f"{path_of(sequence)}: {error}")
    return LogEntry(sequence, content)


def history(entries: Sequence[LogEntry]) -> Iterator[LogEntry]:
    """Return the entries of snapshots, and those that cannot be read, which led to the present state, newest first.

    Where a start resumed from an older snapshot, the entries between are left out.
    """
    wanted = None
    for entry in reversed(entries):
        claim, manifest = entry.content if isinstance(entry.content, JobStart) else None, entry.manifest
        if wanted is not None and (manifest is None or manifest.id != wanted):
            continue
        wanted = None
        if claim is None:
            yield entry
        elif claim.resume == NONE:
            return
        elif claim.resume != LATEST:
            wanted = claim.resume
    if wanted is not None:
        yield LogEntry(0, None, f"snapshot {wanted}, from which the job resumed, does not exist")


def joined_faults(entries: Iterable[LogEntry]) -> str:
    """Return the faults of the entries that cannot be read, as the end of a message.

    >>> joined_faults([LogEntry(1, JobStart(3, 1)), LogEntry(2, None, "it is damaged")])
    '; it is damaged'
    """
    return "".join(f"; {entry.fault}" for entry in entries if entry.fault)


def next_incarnation(entries: Sequence[LogEntry]) -> int:
    """Return the next incarnation; an entry that cannot be read counts as a start.

    >>> next_incarnation([]), next_incarnation([LogEntry(1, JobStart(3, 1)), LogEntry(2, None, "damaged")])
    (1, 5)
    """
    unknown = 1
    for entry in reversed(entries):
        if entry.content is not None:
            return entry.content.incarnation + unknown
        unknown += 1
    return unknown


class Log:
    """The log of ``job`` in ``store``, in the folder of that name."""

    def __init__(self, store: Store, job: str) -> None:
        self._store = store
        self._job = job
        self._claims: dict[int, LogEntry] = {}
        """Claims never change, so they are read once. Snapshots are read each time, because they may be damaged."""

    def sequences(self) -> list[int]:
        """Return the sorted numbers of the entries."""
        folder = f"{self._job}/"
        return sequences_in([path.removeprefix(folder) for path in self._store.list(f"{folder}{FOLDER}")])

    def entries(self) -> list[LogEntry]:
        """Return all entries, in the order of their numbers."""
        return [entry for entry in map(self.read, self.sequences()) if entry is not None]

    def read(self, sequence: int) -> LogEntry | None:
        """Return one entry, or None if it does not exist."""
        known = self._claims.get(sequence)
        if known is not None:
            return known
        try:
            data = self._store.get(f"{self._job}/{path_of(sequence)}")
        except FileNotFoundError:
            return None
        except SnapshotError as error:
            if not is_lost(error):
                raise
            return LogEntry(sequence, None, str(error))
        entry = entry_of(data, job=self._job, sequence=sequence)
        if isinstance(entry.content, JobStart):
            self._claims[sequence] = entry
        return entry

    def append(self, sequence: int, data: bytes) -> bool:
        """Write an entry; return False if another entry has its number. Writing the same entry again succeeds, because
        the answer of the store may have been lost."""
        path = f"{self._job}/{path_of(sequence)}"
        if self._store.create(path, data):
            return True
        try:
            return self._store.get(path) == data
        except FileNotFoundError:
            return False

    def keeps_what_is_there(self, sequence: int, data: bytes) -> bool:
        """Return whether the store refuses to create an existing entry; the entry is written again with its own bytes.

        Some stores with the protocol of S3 ignore the condition.
        """
        return not self._store.create(f"{self._job}/{path_of(sequence)}", data)

    def remove(self, sequence: int) -> None:
        """Remove the entry of a snapshot."""
        self._store.delete(f"{self._job}/{path_of(sequence)}")


_STORED_START: Final = strict_form(JobStart, format=int, kind=str, job=str)


def _start_of(stored: Mapping[str, Any]) -> JobStart:
    check_format(stored)
    claim = msgspec.convert(msgspec.convert(stored, _STORED_START), JobStart, from_attributes=True)
    if claim.incarnation < 1:
        raise ValueError("the claim: its incarnation is below one")
    return claim
