"""Test mode: what a step took in and sent out must not change afterwards."""

from __future__ import annotations

from contextlib import suppress

from malstrom_py.batches import Batch
from malstrom_py.testing.exact import copy_batch, same_batch
from malstrom_py.testing.law_error import LawError

NO_MUTATION = "no mutation of inputs"


class MutationWatch:
    """Keeps deep copies of batches and tells when one of them is no longer as it was."""

    def __init__(self) -> None:
        self._watched: list[tuple[str, Batch, Batch]] = []

    def add(self, what: str, batch: Batch) -> None:
        """Watch ``batch``, which is ``what`` in an error."""
        with suppress(Exception):  # what cannot be copied cannot be compared
            self._watched.append((what, batch, copy_batch(batch)))

    def check(self) -> None:
        """`LawError` if a batch has changed since it was added."""
        for what, batch, before in self._watched:
            if not same_batch(batch, before):
                raise LawError(
                    NO_MUTATION,
                    f"values are shared between branches and must not be changed, but {what} was",
                    case=f"  before  {shown(before)}\n  after   {shown(batch)}",
                )

    def clear(self) -> None:
        """Watch nothing."""
        self._watched.clear()


def shown(batch: Batch) -> str:
    """The rows of a batch for people."""
    columns = [column for column in (batch.keys, batch.values, batch.timestamps) if column is not None]
    return repr(batch.values if len(columns) == 1 else list(zip(*columns, strict=True)))
