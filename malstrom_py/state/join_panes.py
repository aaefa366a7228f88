"""The panes of a join by window: the records of both streams by span of time, as rows or as columns.

Rules: a side of a pane has columns while all it gets are columns of one schema, keyed by a column; else it has rows, by
key. Columns move and are persisted as columns, if an image stores their types. If it does not, rows are made of them: a
barrier leaves the columns, but a pane of which keys are taken, or that gets keys, has rows until it closes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.batch import ColumnBatch
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage, storable
from malstrom_py.state.group_index import NotColumnar
from malstrom_py.state.join_image import (
    Kind,
    Rows,
    are_in,
    fitted,
    image_of,
    one_array,
    one_key_column,
    records_of,
    rows_in,
    slots_of_keys,
    with_gone,
)
from malstrom_py.state.many_values import ManyValues

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE: Final = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"})
"""The Arrow types of whole numbers that 64 bits hold."""

_PARTS_MAX: Final = 16
"""Of so many columns of changed keys one is made."""


class Side:
    """The records of one stream in a pane: ``rows``, key -> values in order of arrival, or ``blocks`` of columns."""

    __slots__ = ("_counted", "_grouped", "_most", "_rows", "blocks")

    def __init__(self) -> None:
        self._rows: dict[Any, list[Any]] = {}
        self.blocks: list[ColumnBatch] = []
        self._grouped = self._counted = self._most = 0

    def __len__(self) -> int:
        """Return the number of keys or, of columns, that of the block with the most keys, without making rows."""
        if not self.blocks:
            return len(self._rows)
        for block in self.blocks[self._counted :]:
            self._most = max(self._most, len(block.key_column.unique()))  # type: ignore[union-attr]
        self._counted = len(self.blocks)
        return self._most

    @property
    def in_columns(self) -> bool:
        """Whether there are no rows, unless made of columns."""
        return bool(self.blocks) or not self._rows

    @property
    def rows(self) -> Mapping[Any, list[Any]]:
        """The records as rows, made of columns where they are not there; not to be changed."""
        for block in self.blocks[self._grouped :]:
            self._group(block.keys or [], block.values)
        self._grouped = len(self.blocks)
        return self._rows

    @property
    def own_rows(self) -> dict[Any, list[Any]]:
        """The records as rows, to be changed: there are no columns from now on."""
        if self.blocks:
            rows = self.rows
            self.set_blocks([])
            self._rows = {**rows}
        return self._rows

    def keys(self) -> list[Any]:
        """Return the keys, without making rows; one may come several times."""
        if not self.blocks:
            return list(self._rows)
        return [key for block in self.blocks for key in block.key_column.unique().to_pylist()]  # type: ignore[union-attr]

    def set_blocks(self, blocks: list[ColumnBatch]) -> None:
        """Replace all that is there."""
        self.blocks = blocks
        self._rows = {}
        self._grouped = self._counted = self._most = 0

    def add_columns(self, batch: ColumnBatch) -> None:
        """Add columns, keyed by a column."""
        blocks = self.blocks
        alike = not blocks or (blocks[0].columns.schema.equals(batch.columns.schema) and blocks[0].form is batch.form)
        if alike and (blocks or not self._rows):
            blocks.append(batch)
        else:
            self.add(batch.keys or [], batch.values)

    def add(self, keys: Iterable[Any], values: Iterable[Any]) -> None:
        """Add rows."""
        _ = self.own_rows
        self._group(keys, values)

    def _group(self, keys: Iterable[Any], values: Iterable[Any]) -> None:
        rows = self._rows
        get = rows.get
        for key, value in zip(keys, values, strict=True):
            there = get(key)
            if there is None:
                rows[key] = [value]
            else:
                there.append(value)


Pane = tuple[Side, Side]


class JoinPanes(ManyValues):
    """The records of keys, kept by pane: ``open`` is the start of a pane -> its sides.

    As a mapping: key -> {start: (left values, right values)}. ``changed``: keys that came with an image.
    """

    __slots__ = ("_changed", "_kinds", "_sent", "open")

    def __init__(self) -> None:
        self.open: dict[int, Pane] = {}
        self._kinds: list[Kind | None] = [None, None]
        self._sent = [False, False]  # whether a kind is that of a batch, not of an image
        self._changed: list[pa.Array] = []

    def at(self, start: int) -> Pane:
        """Return a pane, new if there is none."""
        pane = self.open.get(start)
        if pane is None:
            pane = self.open[start] = (Side(), Side())
        return pane

    def expected(self, side: int, batch: ColumnBatch) -> ColumnBatch:
        """Return ``batch`` with the types of earlier ones of its stream. Images get those of the first batch."""
        known, schema = self._kinds[side], batch.columns.schema
        if known is None or not self._sent[side]:
            self._kinds[side], self._sent[side] = Kind(schema, batch.form), True
            if known is not None and known.form is batch.form:
                for pane in self.open.values():
                    _refit(pane[side], schema)
        elif not known.schema.equals(schema) and known.form is batch.form:
            cast = fitted(batch.columns, known.schema)
            return batch if cast is None else batch.with_columns(cast, form=batch.form)
        return batch

    # As columns

    @property
    def in_arrays(self) -> bool:
        return all(side.in_columns for pane in self.open.values() for side in pane)

    def changed_keys(self) -> Iterator[Any]:
        return chain.from_iterable(column.to_pylist() for column in self.changed_columns())

    def changed_columns(self) -> list[pa.Array]:
        changed, self._changed = self._changed, []
        return changed

    def image(self, keys: pa.Array | None, slots_of: SlotsOf | None) -> ColumnImage:
        sides = [self._rows_of(side, keys) for side in (0, 1)]
        image = image_of(sides, self._kinds, slots_of)
        return image if keys is None else with_gone(image, keys, slots_of)

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        import numpy as np
        import pyarrow as pa

        keys = self._all_keys()
        slots = slots_of_keys(keys, slots_of)
        there = np.flatnonzero(np.isin(slots, list(wanted)))
        return keys.take(pa.array(there)), slots[there]

    def take_image(self, keys: pa.Array) -> ColumnImage:
        image = storable(self.image(keys, None))
        if image is None:
            raise NotColumnar("states of types that no column stores")
        self._drop(keys)
        return image

    def _drop(self, keys: pa.Array) -> None:
        import pyarrow.compute as pc

        for side in self._sides():
            kept = []
            for block in side.blocks:
                stays = pc.call_function("indices_nonzero", [are_in(plain_key(block.key_column), keys, inverted=True)])
                kept.append(block if len(stays) == len(block) else block.take(stays))
            if any(new is not old for new, old in zip(kept, side.blocks, strict=True)):
                side.set_blocks([block for block in kept if len(block)])

    def put_image(self, image: ColumnImage) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        sides, kinds = rows_in(image)
        held = image.keys.filter(are_in(image.keys, self._all_keys()))
        if len(held):
            return held
        blocks = list[tuple[int, int, ColumnBatch]]()
        for number, (rows, kind, known) in enumerate(zip(sides, kinds, self._kinds, strict=True)):
            if kind is None or not len(rows.keys):
                continue
            values = rows.values if known is None else fitted(rows.values, known.schema)
            if values is None or (known is not None and known.form is not kind.form):
                raise NotColumnar("values of another kind")
            batch = ColumnBatch(values, key_column=rows.keys, form=kind.form)
            starts = rows.moments.to_numpy()
            for start in np.unique(starts).tolist():
                blocks.append((number, start, batch.take(pa.array(np.flatnonzero(starts == start)))))
        for number, start, block in blocks:
            self._kinds[number] = self._kinds[number] or Kind(block.columns.schema, block.form)
            self.at(start)[number].add_columns(block)
        self._changed.append(image.keys.unique())
        if len(self._changed) > _PARTS_MAX:
            self._changed = [one_key_column(self._changed).unique()]
        return held

    def _rows_of(self, side: int, keys: pa.Array | None) -> Rows | None:
        """Return the rows of a stream, of ``keys``, None: of all; None if it has sent nothing."""
        import numpy as np
        import pyarrow as pa

        kind = self._kinds[side]
        if kind is None:
            return None
        panes = [(start, block) for start, pane in self.open.items() for block in pane[side].blocks]
        blocks = [block for _, block in panes]
        if any(not block.columns.schema.equals(kind.schema) or block.form is not kind.form for block in blocks):
            raise NotColumnar("values of several kinds")
        there = one_key_column([plain_key(block.key_column) for block in blocks])
        starts = np.repeat(np.array([start for start, _ in panes], np.int64), [len(block) for block in blocks])
        values = pa.Table.from_batches([block.columns for block in blocks], kind.schema)
        moments = pa.array(starts)
        if keys is not None:
            mask = are_in(there, keys)
            there, moments, values = there.filter(mask), moments.filter(mask), values.filter(mask)
        columns = [one_array(column) for column in values.columns]
        return Rows(there, moments, pa.RecordBatch.from_arrays(columns, schema=kind.schema))

    def _all_keys(self) -> pa.Array:
        """Return the keys of the blocks, each once."""
        return one_key_column(plain_key(block.key_column) for side in self._sides() for block in side.blocks).unique()

    def _sides(self) -> Iterator[Side]:
        return chain.from_iterable(self.open.values())

    # The mapping

    def many(self, keys: Sequence[Any]) -> list[Any]:
        found: list[dict[int, Any]] = [{} for _ in keys]
        for start, (left, right) in sorted(self.open.items(), key=itemgetter(0)):
            lefts, rights = left.rows.get, right.rows.get
            for states, key in zip(found, keys, strict=True):
                ones, others = lefts(key), rights(key)
                if ones is not None or others is not None:
                    states[start] = (ones or [], others or [])
        return [states or None for states in found]

    def take(self, keys: Sequence[Any]) -> list[Any]:
        taken = self.many(keys)
        gone = [key for key, state in zip(keys, taken, strict=True) if state is not None]
        for side in self._sides():
            rows = side.own_rows
            for key in gone:
                rows.pop(key, None)
        return taken

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        for key, state in zip(keys, values, strict=True):
            for start, sides in _by_pane(state).items():
                for side, records in zip(self.at(start), sides, strict=True):
                    if records:
                        side.own_rows[key] = [*records]

    def __getitem__(self, key: Any) -> dict[int, Any]:
        (found,) = self.many([key])
        if found is None:
            raise KeyError(key)
        states: dict[int, Any] = found
        return states

    def __setitem__(self, key: Any, of_panes: Mapping[int, Any]) -> None:
        self.set_many([key], [of_panes])

    def __delitem__(self, key: Any) -> None:
        if self.take([key]) == [None]:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return any(key in side.rows for side in self._sides())

    def __iter__(self) -> Iterator[Any]:
        yield from dict.fromkeys(chain.from_iterable(side.keys() for side in self._sides()))

    def __reversed__(self) -> Iterator[Any]:
        return iter(tuple(self)[::-1])

    def __len__(self) -> int:
        """Return the number of keys of the largest side, which is at most the number of keys."""
        return max((len(side) for side in self._sides()), default=0)


def _by_pane(state: Mapping[int, Any]) -> Mapping[int, tuple[list[Any], list[Any]]]:
    """Return the state of a key by pane, also of the Python values of an image."""
    if len(next(iter(state.values()))) == 2:
        return state
    panes: dict[int, tuple[list[Any], list[Any]]] = {}
    for start, side, value in records_of(state):
        panes.setdefault(start, ([], []))[side].append(value)
    return panes


def _refit(side: Side, schema: pa.Schema) -> None:
    """Give the columns of a side the types of ``schema``, if they are stored alike."""
    blocks = []
    for block in side.blocks:
        columns = fitted(block.columns, schema)
        if columns is None:
            return
        blocks.append(block.with_columns(columns, form=block.form))
    if blocks:
        side.set_blocks(blocks)


def plain_key(keys: Any) -> pa.Array:
    """Return keys in the one type of their kind."""
    import pyarrow as pa

    return keys.cast(pa.int64() if str(keys.type) in WHOLE else pa.large_string())
