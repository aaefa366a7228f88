"""Values by key that are not in a plain dict: what `KeyedState` asks of them, by many keys or by columns of keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from malstrom_py.state.change_log import SlotsOf
from malstrom_py.state.column_image import ColumnImage
from malstrom_py.state.group_index import NotColumnar

if TYPE_CHECKING:
    import pyarrow as pa


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

    def image(self, keys: pa.Array | None, slots_of: SlotsOf) -> ColumnImage:
        """Return the values of ``keys``, None: of all; those without are gone. ``slots_of`` never changes."""
        raise NotColumnar("values that are not in arrays")

    def in_slots(self, wanted: Collection[int], slots_of: SlotsOf) -> tuple[pa.Array, Any]:
        """Return the keys with state in ``wanted`` slots, and a vector of their slots. ``slots_of`` as of `image`."""
        raise NotColumnar("values that are not in arrays")

    def take_image(self, keys: pa.Array) -> ColumnImage:
        """Drop the values of ``keys``, and return them as `image` does. Their slots are 0."""
        raise NotColumnar("values that are not in arrays")

    def put_image(self, image: ColumnImage) -> pa.Array:
        """Set the values of keys. Return those of the keys that have values already: then nothing is set.

        After `NotColumnar` nothing has changed.
        """
        raise NotColumnar("values that are not in arrays")


Values = dict[Any, Any] | ManyValues
"""The values of a step by key: in a dict, or as the step keeps them."""
