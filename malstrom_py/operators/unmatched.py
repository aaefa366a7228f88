"""The records of a join that find no partner: their count, and a warning if none of the first ones finds one."""

from __future__ import annotations

from typing import Any, Final

from malstrom_py.data.batch import Batch
from malstrom_py.operators.base import StepContext
from malstrom_py.operators.first_rows import FirstRows

_NUMBERS: Final = {"bool", "int", "float", "Decimal"}
"""The types of which keys may be equal to those of another one: 1 is 1.0."""


class Unmatched(FirstRows):
    """Counts the records of a join that are dropped, and watches whether any finds a partner.

    The warning names the types of both sides' keys: 1 and "1" look alike and are two keys.
    """

    def __init__(self, context: StepContext) -> None:
        super().__init__(context)
        self._kinds: list[str | None] = [None, None]

    def arrived(self, side: int, batch: Batch) -> None:
        """Learn of which type the keys of a side are."""
        if self._kinds[side] is None:
            keys = batch.key_column
            self._kinds[side] = _kind_of(keys[0].as_py() if keys is not None else (batch.keys or [None])[0])

    def dropped(self, count: int) -> None:
        """Count records that were dropped because they have no partner."""
        self._context.counters.unmatched += count
        self.mistaken(count)

    def _words(self, rows: str) -> str:
        return f"{rows} records of this join found no partner. {_of_keys(*self._kinds)}"


def _of_keys(left: str | None, right: str | None) -> str:
    """Return what the keys of both sides say about it."""
    for side, kind in (("left", left), ("right", right)):
        if kind is None:
            return f"Its {side} stream has had no record on this worker. join_table can wait for its table: wait=True"
    found = f"The keys of its left stream are of type {left}, those of its right one of type {right}"
    if left == right or {left, right} <= _NUMBERS:
        return f"{found}. If you expect partners, compare the keys, and the times, of both streams"
    return f'{found}, so none are equal: 1 and "1" are two keys. Convert one of them in its key_by'


def _kind_of(key: Any) -> str:
    if isinstance(key, tuple):
        return f"tuple ({', '.join(map(_kind_of, key))})"
    return type(key).__name__
