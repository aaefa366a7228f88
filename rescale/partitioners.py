"""Partitioners: key -> slot, one per ``key_by`` (F3). The routing table maps slots to workers.

Rule: equal keys get equal slots, on every worker and in every run; every partitioner refuses illegal keys (F4).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from malstrom_py.errors import CodecError, OperatorError, PlanError
from malstrom_py.errors.text import describe_error, describe_function, failed_in, sentence
from malstrom_py.rescale.keys.key_hash import int64_of
from malstrom_py.rescale.keys.key_types import check_key
from malstrom_py.rescale.slots import CheckedKeys, SlotCache, StableSlots

if TYPE_CHECKING:
    import pyarrow as pa


class KeySlots(Protocol):
    """A partitioner bound to one step and a fixed number of slots."""

    def slot_of(self, key: Any) -> int:
        """Return the slot of one key."""
        ...

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        """Return the slots of ``keys``, one each, in order."""
        ...

    def slots_of_arrow(self, keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
        """Return the slots of a column of keys, as uint32 without nulls; a null is the key None."""
        ...


@runtime_checkable
class Partitioner(Protocol):
    """A function from keys to slots. Immutable, so that it can be shared and sent; caches are in `KeySlots`."""

    def bind(self, slots: int, *, step: str = "") -> KeySlots:
        """Return this partitioner bound to ``step`` in a job of ``slots`` slots."""
        ...


@dataclass(frozen=True, slots=True)
class StableHash:
    """The default: a stable hash of the key modulo the number of slots. See ``docs/key-hash.md``.

    >>> StableHash().bind(1024).slot_of("user-0001")
    365
    """

    def bind(self, slots: int, *, step: str = "") -> StableSlots:
        """Return this partitioner bound to ``step`` in a job of ``slots`` slots."""
        return StableSlots(slots, step=step)


@dataclass(frozen=True, slots=True)
class Index:
    """The partitioner for keys that are integers: slot = key modulo the number of slots.

    So n * slots successive integers are spread evenly, n per slot. A negative key counts from the end, as an index
    does. A number that equals an integer of 64 bits is an integer (1.0, True, Decimal(1)); every other key is a
    `CodecError`.

    >>> Index().bind(8).slots_of([0, 1, 9, -1])
    [0, 1, 1, 7]
    """

    def bind(self, slots: int, *, step: str = "") -> KeySlots:
        """Return this partitioner bound to ``step`` in a job of ``slots`` slots."""
        return _IndexSlots(slots, step=step)


@dataclass(frozen=True, slots=True)
class Own:
    """A user's function ``key -> slot``. It is called once per distinct key, as far as a cache remembers.

    It must return equal slots for equal keys (1 and 1.0). A slot outside 0 to ``slots - 1``, or an exception, is an
    `OperatorError` that names the function.

    >>> Own(lambda key: ord(key[0])).bind(256).slots_of(["ant", "asp", "bee"])
    [97, 97, 98]
    """

    function: Callable[[Any], int]

    def bind(self, slots: int, *, step: str = "") -> KeySlots:
        """Return this partitioner bound to ``step`` in a job of ``slots`` slots."""
        return _OwnSlots(self.function, slots, step=step)


def partitioner_of(given: Partitioner | Callable[[Any], int] | None, step: str) -> Partitioner:
    """Return the ``partitioner=`` argument of ``step`` as a `Partitioner`; None is the default.

    >>> partitioner_of(None, "carrier")
    StableHash()
    """
    if given is None:
        return StableHash()
    if isinstance(given, Partitioner):
        if not isinstance(given, type):
            return given
    elif callable(given):
        return Own(given)
    raise PlanError(
        f"step {step!r}: partitioner must be partitioners.stable_hash, partitioners.index or a function key -> slot, "
        f"got {f'the class {given.__name__}' if isinstance(given, type) else type(given).__name__}"
    )


def slots_of_legal_keys(partitioner: Partitioner, slots: int, *, step: str) -> KeySlots:
    """Return ``partitioner`` bound for an exchange, whose keys `key_by` has checked: ours do not check them again."""
    bound = partitioner.bind(slots, step=step)
    if isinstance(bound, CheckedKeys):
        bound.trust_keys()
    return bound


class _IndexSlots(CheckedKeys):
    def slot_of(self, key: Any) -> int:
        check_key(key, self._step)
        return self._find(key)

    def _find(self, key: Any) -> int:
        integer = int64_of(key)
        if integer is None:
            where = f"step {self._step!r}: " if self._step else ""
            raise CodecError(
                f"{where}partitioners.index takes integers of 64 bits, not a key of type {type(key).__name__}: key by "
                f"an integer, or use partitioners.stable_hash.",
                step=self._step,
                type_name=type(key).__name__,
            )
        return integer % self._slots

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        self._check(keys)
        if set(map(type, keys)) == {int} and min(keys) >= -(1 << 63) and max(keys) < 1 << 63:
            slots = self._slots
            return [key % slots for key in keys]
        return [self._find(key) for key in keys]

    def slots_of_arrow(self, keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
        from malstrom_py.rescale.slots import column_slots

        return column_slots(
            keys, slots_of=self.slots_of, slots_of_vector=lambda vector: vector % self._slots, step=self._step
        )


@dataclass(frozen=True, slots=True)
class _OwnFunction:
    """The user's ``function`` of ``step``: key -> (slot below ``slots``, size of the key in bytes)."""

    function: Callable[[Any], int]
    slots: int
    step: str

    def __call__(self, key: Any) -> tuple[int, int]:
        try:
            returned = self.function(key)
        except Exception as error:
            raise self._error(
                f"failed: {sentence(describe_error(error))}", key, failed_in(self.function, error)
            ) from error
        try:
            slot = operator.index(returned)
        except Exception as error:  # of a value without __index__, or raised by it
            what = f"returned {type(returned).__name__} for a key, but a slot is an int from 0 to {self.slots - 1}"
            raise self._error(what, key) from error
        if not 0 <= slot < self.slots:
            raise self._error(f"returned {slot} for a key, but slots go from 0 to {self.slots - 1}", key)
        return slot, getsizeof(key)

    def _error(self, what: str, key: Any, place: str = "") -> OperatorError:
        where = f"step {self.step!r}: " if self.step else ""
        function = describe_function(self.function)
        return OperatorError(
            f"{where}the partitioner {place or function} {what}. It takes a key and returns its slot.",
            step=self.step,
            key=key,
            function=function,
        )


class _OwnSlots(CheckedKeys):
    def __init__(self, function: Callable[[Any], int], slots: int, *, step: str) -> None:
        super().__init__(slots, step=step)
        self._cache = SlotCache(_OwnFunction(function, slots, step))

    def slot_of(self, key: Any) -> int:
        check_key(key, self._step)
        return self._cache.slot_of(key)

    def slots_of(self, keys: Sequence[Any]) -> list[int]:
        self._check(keys)
        return self._cache.slots_of(keys)

    def slots_of_arrow(self, keys: pa.Array[Any] | pa.ChunkedArray[Any]) -> pa.Array[Any]:
        from malstrom_py.rescale.slots import column_slots

        return column_slots(keys, slots_of=self.slots_of, slots_of_vector=None, step=self._step)
