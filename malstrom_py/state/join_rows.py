"""The state of a join by key, as columns: the rows of both streams, and what changed.

Rule: there are columns as long as they hold what comes. What they do not hold raises `NotColumnar` before anything has
changed; then there are dicts: panes have their own, of other states `KeyedState.to_rows` makes one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeGuard

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.row_form import DICTS, RowForm
from malstrom_py.data.schema import contains
from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage
from malstrom_py.state.group_index import GroupIndex, NotColumnar, ids_of
from malstrom_py.state.group_values import Array, longer, swept
from malstrom_py.state.join_image import Rows, fitted, image_of, plain_key, records_of, rows_in, with_gone
from malstrom_py.state.kept_rows import SMALL, Block, Chosen, KeptRows
from malstrom_py.state.many_values import ArrayValues, ManyValues

if TYPE_CHECKING:
    import pyarrow as pa

Record = tuple[int, int, Any]
"""A row of a key: its moment, its side and its value."""

_SPARE: Final = 4096
"""So many ids may belong to keys without state."""


class JoinSides(ManyValues):
    """Key -> state, of which the rows are in ``sides``. ``tracked``: whether it is to be known which keys change."""

    __slots__ = ("sides", "tracked")

    small: ClassVar[tuple[int, int]] = (SMALL, SMALL)
    """See `KeptRows`, of each side."""

    kept: ClassVar[type[KeptRows]] = KeptRows
    """What keeps each side."""

    forms: ClassVar[frozenset[RowForm]] = frozenset((DICTS,))
    """Of batches that may be columns here."""

    def __init__(self, tracked: Callable[[], bool] = lambda: False) -> None:
        self.tracked = tracked
        self.clear()

    def clear(self) -> None:
        """Forget all columns, and of which kinds they were."""
        self.sides = tuple(map(self.kept, self.small))

    # What a subclass says

    @abstractmethod
    def state_of(self, records: Sequence[Record]) -> Any:
        """Return the state of a key that has these rows, in order."""

    @abstractmethod
    def among(self, keys: pa.Array) -> Chosen:
        """Return what chooses the rows of ``keys``. `NotColumnar` if no column here holds such keys."""

    @abstractmethod
    def are_live(self, keys: pa.Array) -> Array:
        """Return which of ``keys`` have state. `NotColumnar` if they are of another kind than earlier ones."""

    @abstractmethod
    def note_keys(self, keys: pa.Array) -> None:
        """Note that the state of keys changes."""

    @abstractmethod
    def put(self, side: int, batch: ColumnBatch, moments: Array) -> None:
        """Keep rows that came with an image."""

    def is_live(self, side: int, block: Block) -> Array | None:
        """Return which rows of a block are state; None: all."""
        return None

    def stored_moments(self, side: int, block: Block) -> Array:
        """Return the moments that an image has."""
        return block.moments

    # Columns

    def takes(self, batch: Batch) -> TypeGuard[ColumnBatch]:
        """Return whether a batch is of columns that may be kept as such."""
        if not isinstance(batch, ColumnBatch) or batch.form not in self.forms or not batch.columns.num_columns:
            return False
        import pyarrow as pa

        keys = batch.key_column
        if keys is None or not GroupIndex.supports(keys.type):
            return False
        # A union has no null for where there is no partner.
        return not any(contains(type_, pa.types.is_union) for type_ in batch.columns.schema.types)

    def picked(self, side: int, chosen: Chosen | None) -> Block | None:
        """Return the rows of a side that are state, the ``chosen`` ones, None: all; None if there are none."""

        def rows(block: Block) -> Array:
            import numpy as np

            live = self.is_live(side, block)
            if chosen is None:
                return np.ones(len(block), np.bool_) if live is None else live
            return chosen(block) if live is None else chosen(block) & live

        return self.sides[side].pick(rows)

    # What `ManyValues` asks of columns

    def image(self, keys: pa.Array | None, slots_of: SlotsOf | None) -> ColumnImage:
        chosen = None if keys is None else self.among(keys)
        rows = [self._rows_of(side, chosen) for side in (0, 1)]
        image = image_of(rows, [kept.kind for kept in self.sides], slots_of)
        return image if keys is None else with_gone(image, keys, slots_of)

    def _rows_of(self, side: int, chosen: Chosen | None) -> Rows | None:
        """Return the ``chosen`` rows of a stream; None if it has sent nothing."""
        import pyarrow as pa

        kind = self.sides[side].kind
        if kind is None:
            return None
        block = self.picked(side, chosen)
        if block is None:
            none = pa.RecordBatch.from_arrays([pa.nulls(0, one) for one in kind.schema.types], schema=kind.schema)
            return Rows(pa.array([], pa.large_string()), pa.array([], pa.int64()), none)
        moments = pa.array(self.stored_moments(side, block))
        return Rows(plain_key(block.batch.key_column), moments, block.batch.columns)

    def put_image(self, image: ColumnImage) -> pa.Array:
        import pyarrow as pa

        sides, kinds = rows_in(image)
        batches = list[tuple[int, ColumnBatch, Array]]()
        for side, (rows, kind, kept) in enumerate(zip(sides, kinds, self.sides, strict=True)):
            if kind is None or not len(rows.keys):
                continue
            known = kept.kind
            values = rows.values if known is None else fitted(rows.values, known.schema)
            if values is None or kind.form not in self.forms or (known is not None and known.form is not kind.form):
                raise NotColumnar("values of another kind")
            batch = ColumnBatch(values, key_column=rows.keys, form=kind.form)
            batches.append((side, batch, rows.moments.to_numpy()))
        held = self.are_live(image.keys)
        if held.any():
            return image.keys.filter(pa.array(held))
        self.note_keys(image.keys)
        for side, batch, moments in batches:
            self.put(side, batch, moments)
        return image.keys[:0]

    # The mapping

    def states_of(self, chosen: Chosen, numbers: Chosen) -> dict[int, Any]:
        """Return the states of the ``chosen`` rows, by the number that ``numbers`` has of the key of each."""
        records: dict[int, list[Record]] = {}
        for side in (0, 1):
            block = self.picked(side, chosen)
            if block is not None:
                moments = self.stored_moments(side, block).tolist()
                rows = zip(numbers(block).tolist(), moments, block.batch.values, strict=True)
                for one, moment, value in rows:
                    records.setdefault(one, []).append((moment, side, value))
        return {one: self.state_of(of_key) for one, of_key in records.items()}

    def given(self, state: Any) -> Any:
        """Return a state as dicts keep it, also if it is the Python values of an image."""
        is_image = isinstance(state, Mapping) and len(next(iter(state.values()))) == 4
        return self.state_of(list(records_of(state))) if is_image else state


class JoinRows(JoinSides, ArrayValues):
    """Rows of keys that have ids. ``by_id``: vectors by the id of a key, which grow with `ids`."""

    __slots__ = ("_full", "by_id", "index")

    absent: ClassVar[dict[str, tuple[str, Any]]] = {"changed": ("bool", False), "slot": ("int32", -1)}
    """The vectors: the type, and the value of a key without state, which the last entry of all has."""

    def clear(self) -> None:
        super().clear()
        self._number()

    def _number(self) -> None:
        import numpy as np

        self._full = _SPARE  # when it is worth looking for ids of keys without state
        self.index = GroupIndex()
        self.by_id: dict[str, Array] = {name: np.full(1, absent, kind) for name, (kind, absent) in self.absent.items()}

    @abstractmethod
    def drop(self, chosen: Array) -> None:
        """Drop the rows of the ids for which the vector ``chosen`` is true."""

    def ids(self, keys: pa.Array) -> Array:
        """Return the ids of keys, which get some. `NotColumnar` if they are of another kind than earlier ones."""
        ids = self.index.ids(keys)
        size = len(self.index)
        if size >= len(self.by_id["changed"]):  # the last entry is of no key
            size += size // 2 + 16
            self.by_id = {name: longer(array, size, self.absent[name][1]) for name, array in self.by_id.items()}
        return ids

    def live_ids(self) -> Array:
        """Return the ids of the keys with state."""
        import numpy as np

        found = np.zeros(len(self.index), np.bool_)
        for side, kept in enumerate(self.sides):
            for block in kept.blocks:
                live = self.is_live(side, block)
                found[block.ids if live is None else block.ids[live]] = True
        return found.nonzero()[0]

    def mark(self, ids: Array) -> None:
        """Note that the state of keys changes."""
        if self.tracked():
            self.by_id["changed"][ids] = True

    def forget(self) -> None:
        """Forget the ids of keys without state, once they are most of all."""
        size = len(self.index)
        if size <= self._full:
            return
        found = self.by_id["changed"][:size].copy()
        found[self.live_ids()] = True
        live = found.nonzero()[0]
        if 2 * len(live) <= size:
            self._forget_all_but(live)
        self._full = _SPARE + 2 * len(live)

    def _forget_all_but(self, live: Array) -> None:
        import numpy as np

        new = np.full(len(self.index), -1, np.int32)
        new[live] = np.arange(len(live))
        keys, by_id = self.keys_of(live), self.by_id
        self._number()
        self.ids(keys)
        for name, array in by_id.items():
            self.by_id[name][: len(live)] = array[live]
        for kept in self.sides:
            kept.renumber(new)

    def keys_of(self, ids: Array) -> pa.Array:
        return self.index.keys(ids)

    def find(self, keys: pa.Array) -> Array:
        return self.index.find(keys)

    def _chosen(self, ids: Array) -> Array:
        """Return a vector by id that is true for ``ids``, of which some may be -1."""
        import numpy as np

        chosen = np.zeros(len(self.index) + 1, np.bool_)
        chosen[ids] = True
        return chosen[:-1]

    def changed_ids(self) -> Array:
        changed = self.by_id["changed"]
        ids: Array = changed.nonzero()[0]
        changed[:] = False
        return ids

    sweeps = True

    def count_changed(self) -> int:
        import numpy as np

        return int(np.count_nonzero(self.by_id["changed"]))

    def sweep(self, keys_max: int, *, of_all: bool) -> list[Iterator[pa.Array]]:
        index = self.index
        if of_all:
            self.by_id["changed"][self.live_ids()] = True
        ids = swept(lambda: self.by_id["changed"] if self.index is index else None, len(index), keys_max)
        return [map(index.keys, ids)]

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        import numpy as np

        ids, slots = self.live_ids(), self.by_id["slot"]
        unknown = ids[slots[ids] < 0]
        if len(unknown):
            slots[unknown] = slots_of(self.keys_of(unknown).to_pylist())
        ids = ids[np.isin(slots[ids], list(wanted))]
        return self.keys_of(ids), slots[ids].astype(np.int64)

    def drop_ids(self, ids: Array) -> None:
        """Drop the state of keys that leave.

        They stay changed: the state of one may have ended since the last barrier, which nothing else notes.
        """
        self.drop(self._chosen(ids))
        self.forget()

    @property
    def leaves_whole(self) -> bool:
        return True

    # `JoinSides`

    def among(self, keys: pa.Array) -> Chosen:
        chosen = self._chosen(self.index.find(keys))
        return lambda block: chosen[block.ids]

    def are_live(self, keys: pa.Array) -> Array:
        ids = self.ids(keys)
        return self._chosen(self.live_ids())[ids]

    def note_keys(self, keys: pa.Array) -> None:
        self.mark(self.ids(keys))

    # The mapping

    def lack(self, keys: Sequence[Any]) -> list[bool]:
        ids, live = ids_of(self.find, keys), self._chosen(self.live_ids())
        return [one < 0 or not live[one] for one in ids.tolist()]

    def values_of(self, ids: Array) -> list[Any]:
        chosen = self._chosen(ids)
        states = self.states_of(lambda block: chosen[block.ids], lambda block: block.ids)
        return [states.get(one) for one in ids.tolist()]

    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        if keys:
            raise NotColumnar("states of rows")
