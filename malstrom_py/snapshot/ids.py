"""Ids of snapshots: the time of creation and a random suffix.

Rule: ids are unique and sort by time. Each is larger than all earlier ones, even after the clock was set back.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from malstrom_py.sinks.base import SnapshotId

ID: Final = r"\d{8}T\d{12}Z-[0-9a-f]{8}"
"""The form of an id, as a regular expression."""

_LEGAL = re.compile(ID, re.ASCII)
_STAMP: Final = "%Y%m%dT%H%M%S%fZ"


def fresh_snapshot_id(now_s: float) -> SnapshotId:
    """Return a unique id that sorts by time; ``now_s``: seconds since 1970.

    >>> fresh_snapshot_id(0.0)[:22]
    '19700101T000000000000Z'
    """
    return _id_at(datetime.fromtimestamp(now_s, UTC))


def next_snapshot_id(now_s: float, after: str | None) -> SnapshotId:
    """Return an id that is larger than ``after``, the largest existing id or None, for any ``now_s``.

    >>> next_snapshot_id(0.0, "20261122T042242123456Z-1a2b3c4d")[:22]
    '20261122T042242123457Z'
    """
    now = datetime.fromtimestamp(now_s, UTC)
    if after is not None:
        now = max(now, datetime.fromtimestamp(0, UTC) + _since_1970(after) + timedelta(microseconds=1))
    return _id_at(now)


def id_of_start(created: str) -> SnapshotId:
    """Return the largest id of the time at which a start was claimed, ISO 8601; an empty text if there is no such time.

    A start recovers its sinks with an id that is not larger.

    >>> id_of_start("2026-11-22T04:22:42.123456+00:00")
    '20261122T042242123456Z-ffffffff'
    """
    try:
        made = datetime.fromisoformat(created)
    except ValueError:
        return SnapshotId("")
    made = made.replace(tzinfo=UTC) if made.tzinfo is None else made.astimezone(UTC)
    return SnapshotId(f"{made:{_STAMP}}-ffffffff")


def is_snapshot_id(text: object) -> bool:
    """Return whether ``text`` has the form of an id.

    >>> is_snapshot_id("20261122T042242123456Z-1a2b3c4d"), is_snapshot_id("../20261122T042242123456Z-1a2b3c4d")
    (True, False)
    """
    if not isinstance(text, str) or not _LEGAL.fullmatch(text):
        return False
    try:
        _since_1970(text)
    except ValueError:  # such as the 32nd of January
        return False
    return True


def made_at_s(snapshot: str) -> float:
    """Return when the snapshot was started, in seconds since 1970, by the clock of the coordinator.

    >>> made_at_s("19700101T000001500000Z-1a2b3c4d")
    1.5
    """
    return _since_1970(snapshot).total_seconds()


def number_of(snapshot: str) -> int:
    """Return a number of the snapshot for systems that compare numbers: it is larger for a later snapshot.

    It is the time of its start in microseconds since 1970, which `next_snapshot_id` makes larger each time.

    >>> number_of("19700101T000001500000Z-1a2b3c4d")
    1500000
    """
    return _since_1970(snapshot) // timedelta(microseconds=1)


@lru_cache(256)
def _since_1970(snapshot: str) -> timedelta:
    made = datetime.strptime(snapshot.partition("-")[0], _STAMP).replace(tzinfo=UTC)
    return made - datetime.fromtimestamp(0, UTC)


def _id_at(time: datetime) -> SnapshotId:
    return SnapshotId(f"{time:{_STAMP}}-{secrets.token_hex(4)}")
