"""The keys of a step that changed since the last committed snapshot, which a barrier writes (S2).

Rules. A delta is relative to the parent snapshot that the barrier names. The last snapshot written may never be
committed, so its keys count as changed until a later barrier names it as parent. If the parent is unknown here, or if
too many keys changed, all state is written in full, and until then no keys are tracked. A key has the same bytes all
along a chain, even if equal keys have different types (1 and True), because chains are merged by these bytes.

What moves in its stored form is noted by slot: a delta takes what is on disk of such a slot, unless all of it has left.
If keys have left, it replaces the slot. So of a noted slot each key that has changed, or if keys have left each key
with state, is on disk or noted: who brings keys of noted slots into memory notes them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import date, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from malstrom_py.data.equality import has_offset_alone, hold_no_moments
from malstrom_py.state.group_index import NotColumnar, keys_as_column

if TYPE_CHECKING:
    import pyarrow as pa

SPARE: Final = 100_000
"""With more changed keys than twice the keys with state plus this number, all state is written in full."""

_ALIKE: Final = frozenset({type(None), int, str, bytes, date, timedelta, UUID})
"""Types of keys whose equal values have the same stored form, if no other types are mixed in."""


class MovedSlot(NamedTuple):
    """A slot of which keys have moved in their stored form: whether some have ``left``, and some may be ``on_disk``."""

    left: bool
    on_disk: bool


SlotsOf = Callable[[Sequence[Any]], Sequence[int]]


class Changes:
    """The changed keys of one step on one worker. ``noted``: those since the last barrier; None: keys are not tracked.

    Keys of columns are noted as columns, beside ``noted``. ``moved``: how many keys have moved with their slots.

    >>> changes = Changes(lambda keys: [0] * len(keys))
    >>> changes.due(None) is None                                  # in full
    True
    >>> changes.written("s1", None, None)
    >>> changes.noted.update("ab")
    >>> sorted(changes.due("s1"))
    ['a', 'b']
    >>> changes.written("s2", "s1", {"a", "b"})
    >>> changes.noted.add("c")
    >>> sorted(changes.due("s2")), sorted(changes.due("s1")), changes.due("s0")
    (['c'], ['a', 'b', 'c'], None)
    """

    __slots__ = (
        *("_base", "_columns", "_last", "_names", "_slots", "_unsure", "_unsure_columns", "_unsure_slots"),
        *("moved", "noted", "slots_of"),
    )

    def __init__(self, slots_of: SlotsOf) -> None:
        self.slots_of = slots_of
        self.noted: set[Any] | None = None
        self._base: str | None = None
        self._last: str | None = None
        self._unsure: set[Any] = set()
        self._columns: list[pa.Array] = []
        self._unsure_columns: list[pa.Array] = []
        self._slots: dict[int, MovedSlot] = {}
        self._unsure_slots: dict[int, MovedSlot] = {}
        self.moved = 0
        # Key -> the equal key that is written, once keys may be equal and have different stored forms.
        self._names: dict[Any, Any] | None = None

    def note(self, keys: Iterable[Any], held: Callable[[], int]) -> None:
        """Note that ``keys`` may have changed. ``held`` counts all keys with state: only called if many change."""
        noted = self.noted
        if noted is not None:
            noted.update(keys)
            self._limit(held)

    def note_column(self, keys: pa.Array, held: Callable[[], int]) -> None:
        """Do as `note`, for a column of keys.

        >>> import pyarrow as pa
        >>> changes = Changes(lambda keys: [0] * len(keys))
        >>> changes.written("s1", None, None)
        >>> changes.note_column(pa.array(["a", "b"]), lambda: 2)
        >>> changes.due_column("s1").to_pylist(), sorted(changes.due("s1"))
        (['a', 'b'], ['a', 'b'])
        """
        if self.noted is not None and len(keys):
            self._columns.append(keys)
            self._limit(held)

    def note_slot(self, slot: int, moved: int, *, left: bool, on_disk: bool = True) -> None:
        """Note that ``moved`` keys on disk have come with their ``slot``, or have ``left``.

        >>> changes = Changes(lambda keys: [0] * len(keys))
        >>> changes.written("s1", None, None)
        >>> changes.note_slot(4, 10, left=True, on_disk=False)
        >>> changes.note_slot(4, 2, left=False)
        >>> changes.due_slots("s1"), changes.count, changes.kept, changes.due_slots("s0")
        ({4: MovedSlot(left=True, on_disk=True)}, 12, 0, {})
        """
        if self.noted is not None:
            before = self._slots.get(slot)
            self._slots[slot] = MovedSlot(left or (before is not None and before.left), on_disk)
            self.moved += moved

    @property
    def moved_slots(self) -> Collection[int]:
        """The slots that have been noted since the last snapshot."""
        return self._slots.keys()

    @property
    def has_slots(self) -> bool:
        """Whether keys that come into memory must be noted."""
        return bool(self._slots or self._unsure_slots)

    def due_slots(self, parent: str | None) -> dict[int, MovedSlot]:
        """Return the slots that moved since ``parent``; none if all state is written."""
        if self.noted is None or not self._continues(parent):
            return {}
        due = dict(self._slots)
        for slot, before in self._unsure_slots.items() if parent != self._last else ():
            now = due.get(slot, before)
            due[slot] = MovedSlot(now.left or before.left, now.on_disk)
        return due

    def _limit(self, held: Callable[[], int]) -> None:
        spare = SPARE - self._noted_here
        if spare < 0 and 2 * held() + spare < 0:
            self.forget()

    def due(self, parent: str | None) -> set[Any] | None:
        """Return the keys that changed since ``parent``; None if all state must be written."""
        if self.noted is None or not self._continues(parent):
            return None
        due = self.noted
        if self._columns:
            due = due.union(*(column.to_pylist() for column in self._columns))
        if parent == self._last:
            return due
        return due.union(self._unsure, *(column.to_pylist() for column in self._unsure_columns))

    def due_column(self, parent: str | None) -> pa.Array | None:
        """Do as `due`, as a column of keys that differ. `NotColumnar` if no column holds them."""
        import pyarrow as pa

        if self.noted is None or not self._continues(parent):
            return None
        columns = list(self._columns)
        others = self.noted
        if parent != self._last:
            columns += self._unsure_columns
            others = others | self._unsure
        if others or not columns:
            columns.append(keys_as_column(list(others)))
        if len(columns) == 1:
            return columns[0]
        kind, *different = {column.type for column in columns} - {pa.null()} or {pa.null()}
        if different:
            raise NotColumnar("keys of several types")
        return pa.concat_arrays([column.cast(kind) for column in columns]).unique()

    def _continues(self, parent: str | None) -> bool:
        return parent is not None and parent in (self._last, self._base)

    def written(
        self,
        snapshot: str,
        parent: str | None,
        keys: set[Any] | pa.Array | None,
        slots: dict[int, MovedSlot] | None = None,
    ) -> None:
        """Note that the keys `due` and `due_slots` were written to ``snapshot``, which may or may not be committed."""
        self._base = None if keys is None else parent
        self._last = snapshot
        self._unsure = keys if isinstance(keys, set) else set()
        self._unsure_columns = [] if keys is None or isinstance(keys, set) else [keys]
        self._unsure_slots = {} if keys is None or slots is None else slots
        self._columns, self._slots, self.moved = [], {}, 0
        self.noted = set()

    @property
    def count(self) -> int:
        """How many keys have changed since the last snapshot; one in several columns counts several times."""
        return self.moved + self._noted_here

    @property
    def _noted_here(self) -> int:
        return len(self.noted or ()) + sum(map(len, self._columns))

    @property
    def kept(self) -> int:
        """How many keys are kept: with those of the last snapshot, until the next names it as parent."""
        return self._noted_here + len(self._unsure) + sum(map(len, self._unsure_columns))

    def forget(self) -> None:
        """Write all state in full at the next barrier, and track no keys until then."""
        self.noted, self._columns, self._slots, self.moved = None, [], {}, 0

    def begin_names(self, *, mixed: bool) -> None:
        """Begin a chain that is written in pieces. ``mixed``: its keys are not `alike`."""
        self._names = {} if mixed else None

    def as_columns(self, *, full: bool) -> bool:
        """Return whether keys of columns have one stored form all along the chain, which begins if ``full``."""
        if full:
            self._names = None
        return self._names is None

    def continued(self, snapshot: str, keys: Sequence[Any]) -> None:
        """Begin with the chain of ``snapshot``, in which ``keys`` have the forms that they have here.

        >>> changes = Changes(lambda keys: [0] * len(keys))
        >>> changes.continued("s1", ["a", 1.0])
        >>> changes.noted.add(1)
        >>> changes.due("s1"), changes.names([1], 2, full=False)
        ({1}, [1.0])
        """
        if not hold_no_moments(keys) and any(map(has_offset_alone, keys)):
            return  # of an earlier version a key may have another form in the chain: begin a new one
        self._last = snapshot
        self.noted = set()
        self._names = None if alike(keys) else {key: key for key in keys}

    def names(self, keys: Sequence[Any], held: int, *, full: bool) -> Sequence[Any] | None:
        """Return the keys to write for ``keys``, in a state of ``held`` keys; None if a new chain must begin.

        >>> changes = Changes(lambda keys: [0] * len(keys))
        >>> changes.names([1, "a"], 2, full=True), changes.names([True], 2, full=False)
        ([1, 'a'], None)
        >>> changes.names([1, "a"], 2, full=True), changes.names([True, 2.0], 2, full=False)
        ([1, 'a'], [1, 2.0])
        """
        if self._names is None:
            if alike(keys):
                return keys
            self._names = {}
            if not full:
                return None
        elif full:
            self._names = {}
        elif len(self._names) > 2 * held + SPARE:
            return None
        names = self._names
        return [names.setdefault(key, key) for key in keys]


def alike(keys: Sequence[Any]) -> bool:
    """Whether equal keys among ``keys`` have the same stored form.

    >>> alike([1, "a", (2, None)]), alike([1, True]), alike([(1.0,)])
    (True, False, False)
    """
    others = set(map(type, keys)) - _ALIKE
    if others != {tuple}:
        return not others
    return alike(list(chain.from_iterable(key for key in keys if type(key) is tuple)))
