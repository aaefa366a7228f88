"""The rows of one stream that a join keeps, as columns: blocks in order of arrival, of one kind of values.

Rules: nothing is done per row in Python. However small batches are, there are few blocks: small ones become larger
ones. What is left of a block does not hold the memory of more than four times as many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.data.row_form import SCALAR
from malstrom_py.state.group_values import Array
from malstrom_py.state.join_image import Kind, fitted, kept_keys

if TYPE_CHECKING:
    import pyarrow as pa

_FANS: Final = (32, 8)
"""How many blocks, alike in size, become one: of those that are small, and where all do, because there must be few."""

SMALL: Final = 1 << 14
"""A block of so many rows is not small."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows: ``batch`` has their keys as a column, ``ids`` the ids of the keys, ``moments`` a number per row.

    ``ids``: None if keys have none. ``held``: of how many rows it holds the memory. ``known``: what has been found out.
    """

    batch: ColumnBatch
    ids: Array
    moments: Array
    held: int
    known: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.moments)

    def before(self, moment: int) -> Array:
        """Return which rows have a smaller moment; at no cost per row where all do, or none."""
        import numpy as np

        known = self.known
        if "least" not in known:
            known.update(least=int(self.moments.min()), most=int(self.moments.max()))
        if known["least"] < moment <= known["most"]:
            earlier: Array = self.moments < moment
            return earlier
        return np.full(len(self), known["most"] < moment)

    def rows(self, rows: Array) -> Block:
        """Return the rows at the indices ``rows``, which ascend; without a copy if they are neighbours."""
        import pyarrow as pa

        count, ids = len(rows), self.ids
        if count == len(self):
            return self
        if count and rows[-1] - rows[0] == count - 1:
            first, last = int(rows[0]), int(rows[-1]) + 1
            some = None if ids is None else ids[first:last]
            return Block(self.batch.cut(first, last), some, self.moments[first:last], self.held)
        some = None if ids is None else ids[rows]
        return Block(self.batch.take(pa.array(rows)), some, self.moments[rows], count)

    def compact(self) -> Block:
        """Return the same rows, copied if they are less than a quarter of those whose memory they hold."""
        import numpy as np
        import pyarrow as pa

        count, ids = len(self), self.ids
        if 4 * count > self.held:
            return self
        batch = self.batch.take(pa.array(np.arange(count)))
        return Block(batch, None if ids is None else ids.copy(), self.moments.copy(), count)

    def in_order(self) -> Block:
        """Return the rows in the order of their moments, and of arrival."""
        import numpy as np
        import pyarrow as pa

        if (self.moments[1:] >= self.moments[:-1]).all():
            return self
        order, ids = np.argsort(self.moments, kind="stable"), self.ids
        batch = self.batch.take(pa.array(order))
        return Block(batch, None if ids is None else ids[order], self.moments[order], len(order))

    def values(self) -> pa.Array:
        """Return the values as one column."""
        return values_of(self.batch)


Chosen = Callable[[Block], Array]
"""A block -> a vector of booleans, which of its rows are chosen."""


class KeptRows:
    """Blocks of rows of one ``kind``, None before the first. ``small``: blocks of less rows become larger ones."""

    __slots__ = ("_sent", "blocks", "kind", "small")

    def __init__(self, small: int = SMALL) -> None:
        self.blocks: list[Block] = []
        self.kind: Kind | None = None
        self.small = small
        self._sent = False  # whether the kind is that of a batch, not of an image

    def __len__(self) -> int:
        return sum(map(len, self.blocks))

    def expected(self, batch: ColumnBatch) -> ColumnBatch | None:
        """Return ``batch`` with the types that are known of its stream; None if its values are of another kind.

        What came with images gets the types of the first batch, if they are stored alike.
        """
        known, schema = self.kind, batch.columns.schema
        if known is None:
            return batch
        if known.form is not batch.form:
            return None
        if not self._sent:
            known = self._refit(known, schema)
        if known.schema.equals(schema):
            return batch
        cast = fitted(batch.columns, known.schema)
        return None if cast is None else batch.with_columns(cast, form=batch.form)

    def _refit(self, known: Kind, schema: pa.Schema) -> Kind:
        cast = [fitted(block.batch.columns, schema) for block in self.blocks]
        refitted = [
            replace(block, batch=block.batch.with_columns(columns, form=known.form))
            for block, columns in zip(self.blocks, cast, strict=True)
            if columns is not None
        ]
        if len(refitted) < len(cast):
            return known
        self.blocks, self.kind = refitted, Kind(schema, known.form)
        return self.kind

    def add(self, batch: ColumnBatch, ids: Array, moments: Array, *, keys: Any = None, sent: bool = True) -> None:
        """Add rows that are as `expected`. ``keys``: if not of ``batch``. ``sent``: by the stream, not an image."""
        if self.kind is None:
            self.kind = Kind(batch.columns.schema, batch.form)
        self._sent = self._sent or sent
        blocks = self.blocks
        keys = batch.key_column if keys is None else keys
        kept = ColumnBatch(batch.columns, key_column=keys, named=batch.named, form=batch.form)
        blocks.append(Block(kept, ids, moments, len(moments)))
        fan = _FANS[self.small > SMALL]
        while len(blocks) >= fan and len(blocks[-fan]) <= min(self.small, fan * len(blocks[-1])):
            blocks[-fan:] = [self.merged(blocks[-fan:])]

    def merged(self, blocks: Sequence[Block]) -> Block:
        """Return neighbours as one block."""
        return one_block(blocks)

    def pick(self, chosen: Chosen) -> Block | None:
        """Return the ``chosen`` rows as one block, in order; None if there are none."""
        picked = [block.rows(chosen(block).nonzero()[0]) for block in self.blocks]
        picked = [block for block in picked if len(block)]
        return one_block(picked) if picked else None

    def take(self, chosen: Chosen) -> Block | None:
        """Remove the ``chosen`` rows, and return them as `pick` does."""
        taken, left = list[Block](), list[Block]()
        for block in self.blocks:
            goes = chosen(block)
            rows = goes.nonzero()[0]
            if not len(rows):
                left.append(block)
                continue
            taken.append(block.rows(rows))
            if len(rows) < len(goes):
                left.append(block.rows((~goes).nonzero()[0]).compact())
        self.blocks = left
        return one_block(taken) if taken else None

    def gather(self, numbers: Array) -> pa.Array:
        """Return the values of the rows whose moments are ``numbers``, null for -1. Moments ascend by 1 in a block."""
        import numpy as np

        if not self.blocks:
            return values_at(None, self.kind, numbers)
        firsts = np.array([int(block.moments[0]) for block in self.blocks])
        which = np.where(numbers < 0, -1, np.searchsorted(firsts, numbers, side="right") - 1)
        return self.picked(which, numbers - firsts[which])

    def picked(self, which: Array, places: Array) -> pa.Array:
        """Return the values of the rows at indices of blocks, null where the number of the block is -1."""
        import numpy as np
        import pyarrow as pa

        blocks = self.blocks
        if len(blocks) <= 1:
            return values_at(blocks[0] if blocks else None, self.kind, np.where(which < 0, -1, places))
        values = blocks[0].values()
        parts, rows, taken = [pa.nulls(1, values.type)], np.zeros(len(which), np.int64), 1
        for number, block in enumerate(blocks):
            here = (which == number).nonzero()[0]
            if len(here):
                parts.append(block.values().take(pa.array(places[here])))
                rows[here] = np.arange(taken, taken + len(here))
                taken += len(here)
        return pa.concat_arrays(parts).take(pa.array(rows))

    def renumber(self, new: Array) -> None:
        """Replace each id by ``new[id]``."""
        self.blocks = [replace(block, ids=new[block.ids]) for block in self.blocks]


def values_of(batch: ColumnBatch) -> pa.Array:
    """Return the values of a batch as one column."""
    return batch.columns.column(0) if batch.form is SCALAR else batch.columns.to_struct_array()


def values_at(block: Block | None, kind: Kind | None, rows: Array) -> pa.Array:
    """Return the values of some rows, null where there is -1. ``kind``: of values, also without a block, if known."""
    import pyarrow as pa

    if block is not None:
        missing = rows < 0
        return block.values().take(pa.array(rows, mask=missing if missing.any() else None))
    if kind is None:
        return pa.nulls(len(rows))
    return pa.nulls(len(rows), kind.schema.types[0] if kind.form is SCALAR else pa.struct(kind.schema))


def one_block(blocks: Sequence[Block]) -> Block:
    """Return blocks of one kind as one."""
    import numpy as np
    import pyarrow as pa

    if len(blocks) == 1:
        return blocks[0]
    first = blocks[0].batch
    (columns,) = pa.Table.from_batches([block.batch.columns for block in blocks]).combine_chunks().to_batches()
    key_column = kept_keys([block.batch.key_column for block in blocks])
    batch = ColumnBatch(columns, key_column=key_column, named=first.named, form=first.form)
    moments = np.concatenate([block.moments for block in blocks])
    ids = None if blocks[0].ids is None else np.concatenate([block.ids for block in blocks])
    return Block(batch, ids, moments, len(moments))
