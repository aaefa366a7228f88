"""The type table of a job: the classes whose values can be stored.

Stored data names a class as ``module:qualname``. Decoding looks the name up in this table only and never imports a
module.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

import msgspec

from malstrom_py.codec.encoding_errors import NotDecodable, NotEncodable, is_named_tuple, type_name
from malstrom_py.errors import PlanError
from malstrom_py.errors.text import describe_error

C = TypeVar("C", bound=type)

_LOST: Final = "it has attributes that are not fields, which would be lost. Declare them as fields"

Shape = tuple[str, ...]
"""The stored description of a class: its kind, then its fields. It must be the same on reading."""


class ClassCodec(Protocol):
    """The encoding of one class: splits its values into parts and rebuilds them."""

    name: str
    shape: Shape

    def take_apart(self, value: Any) -> Iterable[Any]:
        """Return the parts of ``value``. `NotEncodable` if ``value`` has more than its parts."""
        ...

    def put_together(self, parts: Sequence[Any]) -> Any:
        """Return the value with these parts, without calling code of the class."""
        ...


class _DataclassType:
    """A dataclass, encoded as its fields. Decoding calls neither ``__init__`` nor ``__post_init__``."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._fields = tuple(field.name for field in dataclasses.fields(kind))
        # C[int](...) sets ``__orig_class__``, which adds nothing to the fields.
        self._known = {*self._fields, "__orig_class__"}
        self._parts: Callable[[Any], Any] = attrgetter(*self._fields) if self._fields else lambda _: ()
        self.name = stable_name(kind)
        self.shape: Shape = ("dataclass", *self._fields)
        object.__new__(kind)

    def take_apart(self, value: Any) -> Iterable[Any]:
        if not self._known.issuperset(getattr(value, "__dict__", ())):
            raise NotEncodable(self._kind, _LOST)
        try:
            parts: Any = self._parts(value)
        except AttributeError:
            raise NotEncodable(self._kind, "one of its fields has no value. Give all fields a value") from None
        except Exception as error:
            raise NotEncodable(
                self._kind, f"one of its fields raises {describe_error(error)} when it is read"
            ) from error
        return (parts,) if len(self._fields) == 1 else tuple(parts)

    def put_together(self, parts: Sequence[Any]) -> Any:
        value: Any = object.__new__(self._kind)
        for field, part in zip(self._fields, parts, strict=True):
            object.__setattr__(value, field, part)
        return value


class _StructType:
    """A ``msgspec.Struct``, encoded as its fields. It has no ``__post_init__``, so making it only sets them."""

    def __init__(self, kind: type[msgspec.Struct]) -> None:
        if hasattr(kind, "__post_init__"):
            raise PlanError(
                f"{type_name(kind)} has a __post_init__, which would run again when it is read from a snapshot: "
                f"make it a dataclass, or do this work in a step"
            )
        self._kind = kind
        self._fields = kind.__struct_fields__
        self.name = stable_name(kind)
        self.shape: Shape = ("struct", *self._fields)

    def take_apart(self, value: Any) -> Iterable[Any]:
        if getattr(value, "__dict__", None):
            raise NotEncodable(self._kind, _LOST)
        try:
            return [getattr(value, field) for field in self._fields]
        except AttributeError:
            raise NotEncodable(self._kind, "one of its fields has no value. Give all fields a value") from None

    def put_together(self, parts: Sequence[Any]) -> Any:
        return self._kind(**dict(zip(self._fields, parts, strict=True)))


class _NamedTupleType:
    """A namedtuple, encoded as its items."""

    def __init__(self, kind: type[tuple[Any, ...]]) -> None:
        self._kind = kind
        fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]  # that makes it a namedtuple
        self._count = len(fields)
        self.name = stable_name(kind)
        self.shape: Shape = ("namedtuple", *fields)

    def take_apart(self, value: Any) -> Iterable[Any]:
        if getattr(value, "__dict__", None):
            raise NotEncodable(self._kind, _LOST)
        return value  # type: ignore[no-any-return]  # a tuple

    def put_together(self, parts: Sequence[Any]) -> Any:
        if len(parts) != self._count:
            raise NotDecodable("a namedtuple has a different number of items than fields")
        return tuple.__new__(self._kind, parts)


class _EnumType:
    """An Enum, encoded as the name of the member; a Flag as its bits, because combinations have no name."""

    def __init__(self, kind: type[enum.Enum]) -> None:
        self._kind = kind
        self._flag = issubclass(kind, enum.Flag)
        self.name = stable_name(kind)
        self.shape: Shape = ("flag",) if self._flag else ("enum",)

    def take_apart(self, value: Any) -> Iterable[Any]:
        return (value._value_ if self._flag else value._name_,)

    def put_together(self, parts: Sequence[Any]) -> Any:
        (part,) = parts
        if self._flag:
            if type(part) is not int:
                raise NotDecodable("a flag is not an int")
            flag = self._kind(part)
            if type(flag) is not self._kind:
                raise NotDecodable(f"{self.name} has no such bits: they may have been removed from the class")
            return flag
        if type(part) is not str or part not in self._kind.__members__:
            raise NotDecodable(f"{self.name} has no member of that name: it may have been removed from the class")
        return self._kind.__members__[part]


def stable_name(kind: type) -> str:
    """Return the name of a class in stored data.

    >>> from decimal import Decimal
    >>> stable_name(Decimal)
    'decimal:Decimal'
    """
    return f"{kind.__module__}:{kind.__qualname__}"


class TypeTable:
    """The classes of one job that state and snapshots may contain: dataclasses, Structs, NamedTuples and Enums.

    >>> from dataclasses import dataclass
    >>> types = TypeTable()
    >>> @types.register
    ... @dataclass
    ... class Stats:
    ...     count: int = 0
    >>> Stats in types, int in types
    (True, False)
    """

    def __init__(self) -> None:
        self._by_type: dict[type, ClassCodec] = {}
        self._by_name: dict[str, ClassCodec] = {}

    def register(self, kind: C, /) -> C:
        """Register a class and return it, so that the method can be used as a decorator. Repeating it has no effect.

        Raises:
            PlanError: the class is not of a supported kind, cannot be rebuilt from its fields, or another class of the
                same name is registered.
        """
        if isinstance(kind, type) and kind in self._by_type:
            return kind
        entry = _entry_of(kind)
        if entry.name in self._by_name:
            raise PlanError(
                f"another class named {entry.name} is registered already, and stored data identifies a class by its "
                f"name. Rename one of them"
            )
        self._by_type[kind] = self._by_name[entry.name] = entry
        return kind

    def exchanged(self, new: Callable[[type], type]) -> TypeTable:
        """Return a table of the classes that ``new`` returns for these."""
        table = TypeTable()
        for kind in self._by_type:
            table.register(new(kind))
        return table

    def __contains__(self, kind: type) -> bool:
        return kind in self._by_type

    def of_type(self, kind: type) -> ClassCodec | None:
        """Return the encoding registered for exactly this class, or None."""
        return self._by_type.get(kind)

    def of_name(self, name: str) -> ClassCodec | None:
        """Return the encoding registered under a name in stored data, or None."""
        return self._by_name.get(name)

    def of_stored(self, name: str, shape: Shape) -> ClassCodec | None:
        """Return the encoding that decodes a class stored as ``name`` with ``shape``, or None."""
        return self.of_name(name)


def can_register(kind: object) -> bool:
    """Return whether ``kind`` is a class that can be registered.

    >>> import enum
    >>> can_register(enum.IntFlag), can_register(dict)
    (True, False)
    """
    return isinstance(kind, type) and (
        issubclass(kind, enum.Enum | msgspec.Struct) or is_named_tuple(kind) or dataclasses.is_dataclass(kind)
    )


def _entry_of(kind: Any) -> ClassCodec:
    if not can_register(kind):
        what = type_name(kind) if isinstance(kind, type) else f"a {type_name(type(kind))}"
        raise PlanError(
            f"job.register_type takes dataclasses, msgspec.Structs, NamedTuples and Enums, got {what}: make it one of "
            f"these, because only their fields hold the whole value"
        )
    if issubclass(kind, enum.Enum):
        return _EnumType(kind)
    if is_named_tuple(kind):
        return _NamedTupleType(kind)
    if issubclass(kind, msgspec.Struct):
        return _StructType(kind)
    try:
        return _DataclassType(kind)
    except TypeError as error:
        raise PlanError(
            f"dataclass {type_name(kind)} cannot be rebuilt from its fields ({error}): "
            f"let it inherit from object alone, without abstract methods"
        ) from error
