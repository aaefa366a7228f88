"""Ids of snapshots: the time they were made at, and a random end.

Rule: they sort by time, and each is larger than all before it, also where the clock has gone back; none is given twice.
"""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from malstrom_py.sinks.base import SnapshotId

ID: Final = r"\d{8}T\d{12}Z-[0-9a-f]{8}"
"""What an id looks like, as a regular expression."""

_LEGAL = re.compile(ID, re.ASCII)
_STAMP: Final = "%Y%m%dT%H%M%S%fZ"


def fresh_snapshot_id(now_s: float) -> SnapshotId:
    """A time-sortable id that is never given twice; ``now_s``: seconds since 1970.

    >>> fresh_snapshot_id(0.0)[:22]
    '19700101T000000000000Z'
    """
    return _id_at(datetime.fromtimestamp(now_s, UTC))


def next_snapshot_id(now_s: float, after: str | None) -> SnapshotId:
    """An id that is larger than ``after``, the largest there is (None: there is none), whatever the clock says.

    >>> next_snapshot_id(0.0, "20261122T042242123456Z-1a2b3c4d")[:22]
    '20261122T042242123457Z'
    """
    now = datetime.fromtimestamp(now_s, UTC)
    if after is not None:
        now = max(now, datetime.fromtimestamp(0, UTC) + _since_1970(after) + timedelta(microseconds=1))
    return _id_at(now)


def is_snapshot_id(text: object) -> bool:
    """Whether ``text`` is of the form of an id.

    >>> is_snapshot_id("20261122T042242123456Z-1a2b3c4d"), is_snapshot_id("../20261122T042242123456Z-1a2b3c4d")
    (True, False)
    """
    if not isinstance(text, str) or not _LEGAL.fullmatch(text):
        return False
    try:
        _since_1970(text)
    except ValueError:  # of the 32nd of January
        return False
    return True


def made_at_s(snapshot: str) -> float:
    """When the snapshot with this id was begun, in seconds since 1970, by the clock of who began it.

    >>> made_at_s("19700101T000001500000Z-1a2b3c4d")
    1.5
    """
    return _since_1970(snapshot).total_seconds()


@lru_cache(256)
def _since_1970(snapshot: str) -> timedelta:
    made = datetime.strptime(snapshot.partition("-")[0], _STAMP).replace(tzinfo=UTC)
    return made - datetime.fromtimestamp(0, UTC)


def _id_at(time: datetime) -> SnapshotId:
    return SnapshotId(f"{time:{_STAMP}}-{secrets.token_hex(4)}")
