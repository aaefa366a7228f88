"""Commits to tables that die between any two calls that change something."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

from malstrom_py.connectors.lake.delta_table import DeltaTable
from malstrom_py.connectors.lake.iceberg_table import IcebergTable
from malstrom_py.data.batch import Batch
from malstrom_py.object_stores import Bucket
from malstrom_py.sinks.staged import folder
from malstrom_py.sinks.staged.folder import FolderPlace, _Renames
from malstrom_py.sinks.staged.objects import ObjectPlace
from tests.integration.connectors.lakes import Lake, context_of, worker_of

if TYPE_CHECKING:
    import pytest

CALLS: tuple[tuple[Any, str], ...] = (
    (folder, "sync"),
    (_Renames, "move"),
    *((FolderPlace, name) for name in ("publish", "tidy", "clear", "discard")),
    *((ObjectPlace, name) for name in ("publish", "clear", "discard")),
    *((Bucket, name) for name in ("create", "upload", "copy", "delete")),
    *((table, name) for table in (DeltaTable, IcebergTable) for name in ("commit", "ensure", "merge")),
)
"""What changes a table, or files of it."""


class Crash(BaseException):
    """The process dies."""


class Crashing:
    """Dies before or after the ``at``-th of the calls that change something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self._calls = 0
        self._lock = threading.Lock()
        self._at = at
        for owner, name in CALLS:
            monkeypatch.setattr(owner, name, self._around(getattr(owner, name)))

    @property
    def has_died(self) -> bool:
        return self._calls > self._at

    def step(self) -> None:
        """Die if it is time."""
        with self._lock:  # several objects are moved at the same time
            self._calls += 1
            is_time = self._calls - 1 == self._at
        if is_time:
            raise Crash

    def _around(self, call: Any) -> Any:
        def crashing(*args: Any, **kwargs: Any) -> Any:
            self.step()
            result = call(*args, **kwargs)
            self.step()
            return result

        return crashing


def run(lake: Lake, crashing: Crashing, options: dict[str, Any]) -> int:
    """Write rows 0 to 5 in three snapshots, restarted after each crash; return the number of starts."""
    durable: list[tuple[int, list[bytes], int]] = []
    numbers = itertools.count(1)
    for starts in itertools.count(1):
        assert starts < 4
        there = lake.sink(partition_by="part", **options)
        writer = None
        try:
            there.recover(context_of(next(numbers)), [context_of(number).snapshot for number, _, _ in durable])
            for number, payloads, _ in durable:
                there.commit(context_of(number), payloads)
            writer = there.open(worker_of())
            for start in range(durable[-1][2] if durable else 0, 6, 2):
                writer.write(Batch([{"value": start + more, "part": f"p/{more}"} for more in range(2)]))
                number = next(numbers)
                payload = writer.pre_commit(context_of(number))
                crashing.step()
                durable.append((number, [payload], start + 2))
                crashing.step()
                there.commit(context_of(number), [payload])
            return starts
        except Crash:
            continue
        finally:
            if writer is not None:
                writer.close()
    raise AssertionError


def crash_at(lake: Lake, monkeypatch: pytest.MonkeyPatch, at: int, **options: Any) -> bool:
    """Check a run that dies at call ``at``; return whether it did."""
    with monkeypatch.context() as patch:
        crashing = Crashing(patch, at)
        starts = run(lake, crashing, options)
    assert lake.values() == [0, 1, 2, 3, 4, 5]
    assert starts == 1 + crashing.has_died
    last = lake.sink(**options)
    last.recover(context_of(99), [])
    assert lake.staged() == []
    return crashing.has_died
