"""Values by key that are not in a plain dict: what `KeyedState` asks of them, by many keys or by columns of keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from itertools import chain, compress, islice, repeat
from operator import is_, is_not
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage, storable
from malstrom_py.state.entries import NEEDED, Held
from malstrom_py.state.group_index import NotColumnar, ids_of, listed_keys
from malstrom_py.state.group_values import Array

if TYPE_CHECKING:
    import pyarrow as pa

    from malstrom_py.state.cold import ColdStates
    from malstrom_py.state.memory import StepMemory


class Defaulting(dict[Any, Any]):
    """Values by key for logics that take whole batches: ``values[key]`` of a key without state is ``default()``.

    A lookup stores nothing.

    >>> values = Defaulting(list)
    >>> values["a"], len(values)
    ([], 0)
    """

    __slots__ = ("_default",)

    def __init__(self, default: Callable[[], Any]) -> None:
        super().__init__()
        self._default = default

    def __missing__(self, key: Any) -> Any:
        return self._default()


class ManyValues(MutableMapping[Any, Any]):
    """Values by key for steps that keep them otherwise than in a dict: call for many keys, which costs far less."""

    __slots__ = ()

    @abstractmethod
    def many(self, keys: Sequence[Any]) -> list[Any]:
        """Return the values of ``keys``, None for a key without one."""

    @abstractmethod
    def take(self, keys: Sequence[Any]) -> list[Any]:
        """Remove the values of ``keys``, which differ, and return them as `many` does."""

    @abstractmethod
    def set_many(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Set the values of ``keys``, which differ. After `NotColumnar` nothing has changed."""

    def lack(self, keys: Sequence[Any]) -> list[bool]:
        """Return of each key whether it has no value."""
        return list(map(is_, self.many(keys), repeat(None)))

    def __getitem__(self, key: Any) -> Any:
        (found,) = self.many([key])
        if found is None and key not in self:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self.set_many([key], [value])

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self.take([key])

    def __contains__(self, key: object) -> bool:
        return self.many([key]) != [None]

    @abstractmethod
    def __reversed__(self) -> Iterator[Any]: ...

    def held(self) -> Iterable[Any]:
        """Return the keys whose value is not None: all, unless a subclass has such values."""
        return self

    @property
    def keys_about(self) -> int:
        """About how many keys have a value."""
        return len(self)

    def objects(self, keys: Sequence[Any]) -> list[Any] | None:
        """Return the Python objects that the values of ``keys`` are in memory; None if they are arrays."""
        return None

    def changed_keys(self) -> Iterable[Any]:
        """Return, once, keys whose values have changed and that were not noted: for steps that flag changes."""
        return []

    @property
    def in_arrays(self) -> bool:
        """Whether all values, and all that `changed_keys` would return, are in arrays.

        Only then the methods below are called. They raise `NotColumnar` if arrays hold no such keys or states. The keys
        of a column differ.
        """
        return False

    def changed_columns(self) -> list[pa.Array]:
        """Do as `changed_keys`, as columns; a key may be in several."""
        raise NotColumnar("values that are not in arrays")

    @property
    def leaves_whole(self) -> bool:
        """Whether all values go to disk together: `set_many` takes none back, so the rest would become a dict."""
        return False

    sweeps: ClassVar[bool] = False
    """Whether changed keys are found without a list of them: by the two methods below."""

    def count_changed(self) -> int:
        """Return how many keys `changed_columns` would return."""
        return 0

    def sweep(self, keys_max: int, *, of_all: bool) -> list[Iterator[pa.Array]]:
        """Return what yields the keys that `changed_columns` would return, or ``of_all`` all with state, in turn.

        ``keys_max`` in a column, and none twice by one. What changes during that time, and what could not be yielded,
        counts as changed.
        """
        raise NotColumnar("changed keys that are listed")

    def key_column(self) -> pa.Array:
        """Return the keys with state."""
        raise NotColumnar("keys that are not in arrays")

    def image(self, keys: pa.Array | None, slots_of: SlotsOf | None) -> ColumnImage:
        """Return the values of ``keys``, None: of all; those without are gone. ``slots_of`` never changes; None: 0."""
        raise NotColumnar("values that are not in arrays")

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        """Return the keys with state in ``wanted`` slots, and a vector of their slots. ``slots_of`` as of `image`."""
        raise NotColumnar("values that are not in arrays")

    def drop_keys(self, keys: pa.Array) -> None:
        """Drop the values of ``keys``, which an image has."""
        raise NotColumnar("values that are not in arrays")

    def take_image(self, keys: pa.Array) -> ColumnImage:
        """Drop the values of ``keys``, and return them in a `storable` image of one slot, in which no key is gone."""
        image = storable(self.image(keys, None))
        if image is None:
            raise NotColumnar("states of types that no column stores")
        self.drop_keys(keys)
        return image._replace(gone=None, gone_slots=None)

    def put_image(self, image: ColumnImage) -> pa.Array:
        """Set the values of keys. Return those of the keys that have values already: then nothing is set.

        After `NotColumnar` nothing has changed.
        """
        raise NotColumnar("values that are not in arrays")


_PIECE: Final = 1024
"""As many keys become Python objects together."""


class ArrayValues(ManyValues):
    """Values in arrays, by the ids of keys, which ascend in the order in which the keys got a value.

    A subclass says what the arrays hold; as a mapping it is what the dict of the row path would be.
    """

    __slots__ = ()

    @abstractmethod
    def live_ids(self) -> Array:
        """Return the ids of the keys with a value, ascending."""

    @abstractmethod
    def find(self, keys: pa.Array) -> Array:
        """Return the id of each key, -1 if it has none. `NotColumnar` if arrays hold no such keys."""

    @abstractmethod
    def keys_of(self, ids: Array) -> pa.Array:
        """Return the keys of ``ids``."""

    @abstractmethod
    def values_of(self, ids: Array) -> list[Any]:
        """Return the values of ``ids``, None where there is none."""

    @abstractmethod
    def drop_ids(self, ids: Array) -> None:
        """Drop the values of ``ids``. Other ids may then change."""

    @abstractmethod
    def changed_ids(self) -> Array:
        """Return the ids of the keys whose values have changed since the last call."""

    @property
    def in_arrays(self) -> bool:
        return True

    def drop_keys(self, keys: pa.Array) -> None:
        ids = self.find(keys)
        self.drop_ids(ids[ids >= 0])

    def key_column(self) -> pa.Array:
        return self.keys_of(self.live_ids())

    def changed_keys(self) -> list[Any]:
        return list(chain.from_iterable(map(listed_keys, self.changed_columns())))

    def changed_columns(self) -> list[pa.Array]:
        ids = self.changed_ids()
        return [self.keys_of(ids)] if len(ids) else []

    def many(self, keys: Sequence[Any]) -> list[Any]:
        return self._values_at(ids_of(self.find, keys))

    def lack(self, keys: Sequence[Any]) -> list[bool]:
        lacking: list[bool] = (ids_of(self.find, keys) < 0).tolist()
        return lacking

    def _values_at(self, ids: Array) -> list[Any]:
        there = ids >= 0
        if there.all():
            return self.values_of(ids)
        values = iter(self.values_of(ids[there]))
        return [next(values) if is_there else None for is_there in there.tolist()]

    def take(self, keys: Sequence[Any]) -> list[Any]:
        ids = ids_of(self.find, keys)
        taken = self._values_at(ids)
        self.drop_ids(ids[ids >= 0])
        return taken

    def __len__(self) -> int:
        return len(self.live_ids())

    def __iter__(self) -> Iterator[Any]:
        return self._names(self.live_ids())

    def __reversed__(self) -> Iterator[Any]:
        return self._names(self.live_ids()[::-1])

    def _names(self, ids: Array) -> Iterator[Any]:
        for start in range(0, len(ids), _PIECE):
            yield from listed_keys(self.keys_of(ids[start : start + _PIECE]))

    def values(self) -> Any:
        """Return the values, in the order of the keys."""
        return self.values_of(self.live_ids())

    def items(self) -> Any:
        """Return (key, value) pairs."""
        ids = self.live_ids()
        return list(zip(self._names(ids), self.values_of(ids), strict=True))


M = TypeVar("M", bound=ManyValues)

Values = dict[Any, Any] | ManyValues
"""The values of a step by key: in a dict, or as the step keeps them."""


class StepValues:
    """The ``values`` of a step by key: in arrays while batches are columns and arrays hold them, or in a dict.

    ``arrays``, if the step may keep values in arrays: returns such a mapping without keys. ``entering``: returns the
    state that a dict gets for a key, of one from arrays or from elsewhere.

    ``memory``: what puts some of the states on disk; ``values`` are then those in memory, and all other members are of
    both. ``due_at``: returns when the state of a key is needed although no record comes; None: never.
    """

    __slots__ = ("_patience", "_rows", "arrays", "due_at", "entering", "memory", "values")

    def __init__(self) -> None:
        self.values: Values = {}
        self.memory: StepMemory | None = None
        self.arrays: Callable[[], ArrayValues] | None = None
        self.entering: Callable[[Any, Any], Any] | None = None
        self.due_at: Callable[[Any, Any], int | None] | None = None
        self._rows = 0  # of columns, since values changed between arrays and a dict
        self._patience = 0

    @property
    def has_times(self) -> bool:
        """Whether keys may have timers, or an end: those are known by key, so that values are in a dict."""
        raise NotImplementedError

    def note(self, keys: Iterable[Any]) -> None:
        """Note that the values of ``keys`` may change, or have changed."""
        raise NotImplementedError

    def may_be_arrays(self, rows: int) -> bool:
        """Return whether ``rows`` that have come as columns may be added to arrays: call once for each batch.

        Values in a dict stay there until as many rows have come as columns as there are values, and twice as many each
        time that arrays have not lasted as long: so the change from one to the other costs little per row.
        """
        self._rows += rows
        if isinstance(self.values, ManyValues):
            return True
        if self.has_times or self._rows < self._patience * len(self.values):
            return False
        self._patience, self._rows = max(1, 2 * self._patience), 0
        return True

    def to_arrays(self) -> Any:
        """Keep the values in arrays, and return these. `NotColumnar` if `arrays` do not hold them."""
        if not isinstance(self.values, ManyValues):
            if self.arrays is None:
                raise NotColumnar("a step without arrays")
            made = self.arrays()
            made.set_many(list(self.values), list(self.values.values()))
            made.changed_ids()  # those of a dict have been noted
            self.values = made
        return self.values

    def to_rows(self) -> None:
        """Keep the values in a dict."""
        values = self.values
        if isinstance(values, ManyValues):
            if self._rows >= self._patience * len(values):
                self._patience = 1
            self.values, self._rows = {}, 0
            self._enter(values.items())
            self.note(values.changed_keys())

    @property
    def cold(self) -> ColdStates | None:
        """The states on disk, None if there are none."""
        return None if self.memory is None or not len(self.memory.cold) else self.memory.cold

    @property
    def count(self) -> int:
        """How many keys have a value."""
        return len(self.values) + (0 if self.cold is None else len(self.cold))

    def bring(self, keys: Iterable[Any]) -> None:
        """Bring the values of ``keys`` into memory."""
        if self.memory is not None:
            self.memory.bring(keys)

    def bring_due(self, reached: int) -> Iterator[Sequence[Any]]:
        """Bring the keys on disk that are needed at ``reached`` (`due_at`) into memory, in pieces, and yield each.

        Others are put on disk before the next piece.
        """
        since: bytes | None = None
        while self.memory is not None:
            keys, since = self.memory.bring_due(NEEDED, reached, since)
            if keys:
                yield keys
                self.settle()
            if since is None or not keys:
                return

    def bring_due_apart(self, reached: int, make: Callable[[], M]) -> Iterator[M]:
        """Do as `bring_due`, with each piece apart while it is used: in values that ``make`` returns.

        For windows that overlap: those of the keys in memory have been closed.
        """
        values: Any = self.values
        for keys in self.bring_due(reached):
            piece = make()
            piece.set_many(keys, values.take(keys))
            yield piece
            left = list(piece)
            values.set_many(left, piece.many(left))

    def bring_all(self) -> Iterator[list[Any]]:
        """Do as `bring_due`, for all keys that are on disk at the time of the call."""
        return iter(()) if self.cold is None else self.brought(self.cold.keys())

    def brought(self, keys: Iterable[Any]) -> Iterator[list[Any]]:
        """Yield ``keys`` once their values are in memory: in pieces, if some may be on disk."""
        left = iter(keys)
        while piece := list(left if self.cold is None else islice(left, SETTLES)):
            self.bring(piece)
            yield piece
            self.settle()

    def expect(self, rows: int) -> None:
        """Note that ``rows`` come, whose values are all in memory."""
        if self.memory is not None:
            self.memory.came(rows)

    def arrived(self, count: int) -> None:
        """Note that the values of ``count`` keys have come from elsewhere, and make room."""
        self.expect(count)
        self.settle()

    def settle(self) -> None:
        """Put values on disk until memory has room for the rest."""
        if self.memory is not None:
            self.memory.settle()

    def missing(self, keys: Iterable[Any]) -> list[Any]:
        """Return those of ``keys`` that have no value in memory."""
        values = self.values
        if isinstance(values, ManyValues):
            keys = list(keys)
            return list(compress(keys, values.lack(keys)))
        if type(keys) is set and type(values) is dict:  # without a step of Python for each
            return list(keys.difference(values))
        return [key for key in keys if key not in values]

    def put_away(self, keys: Sequence[Any]) -> Held:
        """Remove the states of ``keys``, which differ, from memory, and return those of the keys that have a value."""
        values = self.values
        found = values.take(keys) if isinstance(values, ManyValues) else list(map(values.pop, keys, repeat(None)))
        had = [value is not None for value in found]
        return Held(list(compress(keys, had)), list(compress(found, had)), {})

    def put_back(self, held: Held) -> None:
        """Set states that were on disk."""
        if held.keys:
            self.set_values(held.keys, held.values)

    def take_values(self, keys: Sequence[Any]) -> list[Any]:
        """Remove the values of ``keys``, which differ, and return them, None for a key without one."""
        self.bring(keys)
        values = self.values
        return values.take(keys) if isinstance(values, ManyValues) else list(map(values.pop, keys, repeat(None)))

    def drop_values(self, keys: Collection[Any]) -> None:
        """Drop the values of ``keys``, which differ."""
        self.bring(keys)
        for key in keys:
            self.values.pop(key, None)

    def with_values(self) -> Iterable[Any]:
        """Return the keys that have a value."""
        return self._in_memory() if self.cold is None else chain(self._in_memory(), self.cold.keys())

    def _in_memory(self) -> Iterable[Any]:
        values = self.values
        if isinstance(values, ManyValues):
            return values.held()
        if not any(map(is_, values.values(), repeat(None))):
            return values
        return compress(values, map(is_not, values.values(), repeat(None)))

    def values_of(self, keys: Sequence[Any]) -> list[Any]:
        """Return the values of ``keys``, None for a key without one."""
        return self.held_of(keys).values

    def held_of(self, keys: Sequence[Any]) -> Held:
        """Return the values of ``keys``, None for a key without one, and the times of those that are on disk."""
        values = self.values
        found = values.many(keys) if isinstance(values, ManyValues) else list(map(values.get, keys))
        if self.cold is None or not any(map(is_, found, repeat(None))):
            return Held(keys, found, {})
        _, on_disk, times, _ = self.cold.peek([key for key, value in zip(keys, found, strict=True) if value is None])
        cold = iter(on_disk)
        return Held(keys, [next(cold) if value is None else value for value in found], times)

    def set_values(self, keys: Sequence[Any], values: Sequence[Any]) -> None:
        """Set the values of ``keys``."""
        if isinstance(self.values, ManyValues):
            try:
                self.values.set_many(keys, values)
            except NotColumnar:
                self.to_rows()
            else:
                return
        self._enter(zip(keys, values, strict=True))

    def _enter(self, states: Iterable[tuple[Any, Any]]) -> None:
        """Set states in a dict, by key."""
        entering = self.entering
        self.values.update(states if entering is None else [(key, entering(key, state)) for key, state in states])

    def whole(self) -> MutableMapping[Any, Any]:
        """Return all values as one mapping."""
        return self.values if self.cold is None else WholeValues(self)


SETTLES: Final = 1024
"""After so many keys that are brought into memory one by one others are put on disk."""


class WholeValues(MutableMapping[Any, Any]):
    """All values of a step, in memory and on disk. What is looked up by key comes into memory."""

    __slots__ = ("_brought", "_state")

    def __init__(self, state: StepValues) -> None:
        self._state = state
        self._brought = 0

    def __getitem__(self, key: Any) -> Any:
        self._bring(key)
        return self._state.values[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._bring(key)
        self._state.values[key] = value

    def __delitem__(self, key: Any) -> None:
        self._bring(key)
        del self._state.values[key]

    def _bring(self, key: Any) -> None:
        if key not in self._state.values:
            self._brought += 1
            if self._brought % SETTLES == 0:
                self._state.settle()
            self._state.bring((key,))

    def __contains__(self, key: object) -> bool:
        self._bring(key)
        return key in self._state.values  # `Defaulting` has a value for each

    def get(self, key: Any, default: Any = None) -> Any:
        self._bring(key)
        return self._state.values.get(key, default)

    def __iter__(self) -> Iterator[Any]:
        in_memory = list(self._state.values)
        on_disk = () if self._state.cold is None else self._state.cold.keys()
        return chain(in_memory, on_disk)

    def __reversed__(self) -> Iterator[Any]:
        if not self._state.values and self._state.cold is not None:  # to pop all takes a scan for each of these
            self._state.bring(list(islice(self._state.cold.keys(), SETTLES)))
        yield from reversed(self._state.values)
        yield from () if self._state.cold is None else self._state.cold.keys()

    def clear(self) -> None:
        self._state.values.clear()
        for _ in self._state.bring_all():
            self._state.values.clear()

    def __len__(self) -> int:
        return self._state.count

    def items(self) -> Any:
        """Return (key, value) pairs, of which none comes into memory to stay."""
        in_memory = list(self._state.values.items())
        on_disk = () if self._state.cold is None else self._state.cold.items()
        return self._as_now(chain(in_memory, on_disk), self._settled)

    def _as_now(self, items: Iterable[tuple[Any, Any]], since: int) -> Iterator[tuple[Any, Any]]:
        """Yield ``items`` with the values that they have by then: others may have changed them in a loop."""
        values = self._state.values
        for key, value in items:
            now = values.get(key)
            if now is None and self._settled > since:
                (now,) = self._state.values_of([key])
            yield key, value if now is None else now

    @property
    def _settled(self) -> int:
        return self._brought // SETTLES

    def values(self) -> Any:
        """Return the values, of which none comes into memory to stay."""
        return (value for _, value in self.items())
