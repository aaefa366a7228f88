"""Proxies for rows, values and tables: they know the kind of a value, and note what is done with it.

Operations that Python refuses for these kinds raise here as they would there, and what has no proxy raises
`NotTraceable`, so that a function never has something else than what it would have.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from types import FunctionType
from typing import Any, Final, Literal, NoReturn, Protocol

from malstrom_py.traced.nodes import Kind, Node, NoFields, NotTraceable
from malstrom_py.traced.purity import Outside


class Questions(Protocol):
    """The path of a function that the proxies are on."""

    kinds: Mapping[str, Kind]
    nullable: frozenset[str]
    outside: Outside

    def read(self, name: str) -> Node:
        """Return the node of a field, which the function reads."""
        ...

    def node(self, operation: str, arguments: tuple[Any, ...], kind: Kind) -> Node:
        """Return the node of an operation."""
        ...

    def answer(self, test: Node) -> bool:
        """Return whether ``test`` is true on this path."""
        ...


def _refuse(self: Any, *_: Any) -> NoReturn:
    raise NoFields


class Row:
    """The proxy for a row that is a dict. ``names``: of its fields, each with the name that `Questions.read` takes.

    None: it has all fields that can be read, by their names.
    """

    def __init__(self, paths: Questions, names: Mapping[str, str] | None = None) -> None:
        self._paths = paths
        self._names: Mapping[str, str] = paths.kinds if names is None else names
        self._is_renamed = names is not None

    def __getitem__(self, name: Any) -> Any:
        if name not in self:
            raise KeyError(name)
        return field_of(self._names[name] if self._is_renamed else name, self._paths)

    def get(self, name: Any, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  there is no other get

    def keys(self) -> Iterable[str]:
        return dict.fromkeys(self._names).keys()

    def _nodes(self) -> dict[str, Node]:
        """Return the nodes of all fields."""
        return {name: self._paths.read(self._names[name] if self._is_renamed else name) for name in self._names}

    def __contains__(self, name: Any) -> bool:
        if type(name) is not str:
            raise NoFields
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    __bool__ = __iter__ = __hash__ = __eq__ = __ne__ = __lt__ = __gt__ = __str__ = __repr__ = _refuse
    __ior__ = __le__ = __ge__ = __format__ = _refuse


class Instance:
    """The proxy for a row of a class with fields. ``names``: of these; None: all that can be read."""

    __slots__ = ("_fields", "_paths")

    def __init__(self, paths: Questions, names: Sequence[str] | None = None) -> None:
        self._paths = paths
        self._fields: Collection[str] = paths.kinds if names is None else names

    def __getattr__(self, name: str) -> Any:
        if name not in self._fields:
            raise NoFields
        return field_of(name, self._paths)

    __bool__ = __iter__ = __len__ = __getitem__ = __contains__ = __hash__ = __eq__ = __ne__ = _refuse
    __lt__ = __gt__ = __le__ = __ge__ = __add__ = __mul__ = __or__ = __str__ = __repr__ = __format__ = _refuse


class Places:
    """The proxy for a row that is a tuple of the fields ``names``; None: all that can be read, if they are known."""

    __slots__ = ("_fields", "_paths")

    def __init__(self, paths: Questions, names: Sequence[str] | None = None) -> None:
        self._paths = paths
        self._fields = list(paths.kinds if names is None else names)

    def _names(self) -> list[str]:
        if not self._fields:
            raise NotTraceable("uses all of a tuple whose length is not known")
        return self._fields

    def __getitem__(self, place: Any) -> Any:
        if type(place) is not int:
            raise NoFields
        # Where it is asked what is known without rows, there is no name, but a field of each.
        return field_of(self._fields[place] if self._fields else str(place), self._paths)

    def __iter__(self) -> Iterator[Any]:
        return iter([field_of(name, self._paths) for name in self._names()])

    def __len__(self) -> int:
        return len(self._names())

    def _nodes(self) -> tuple[Node, ...]:
        """Return the nodes of all fields."""
        return tuple(map(self._paths.read, self._names()))

    __bool__ = __contains__ = __hash__ = __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse
    __add__ = __radd__ = __mul__ = __rmul__ = __or__ = __str__ = __repr__ = __format__ = _refuse


RowKind = Literal["dict", "class", "tuple", "value"]


def row_of(kind: RowKind, paths: Questions, names: Sequence[str] | None = None) -> Any:
    """Return the proxy for a row with the fields ``names``, None: all that can be read; or for the only one."""
    if kind == "value":
        return field_of("value" if names is None else names[0], paths)
    if kind == "dict":
        return Row(paths, None if names is None else dict(zip(names, names, strict=True)))
    return Instance(paths, names) if kind == "class" else Places(paths, names)


def field_of(name: str, paths: Questions) -> Any:
    """Return the proxy for the value of a field."""
    value = _value(paths.read(name), paths)
    # Only a function that compares with ``is`` sees whether it has None before it uses the value.
    return _known(value) if paths.outside.compares_identity else value


class Value:
    """The proxy for a value; of a field that may be None, for None too, until that matters."""

    __slots__ = ("_node", "_paths")

    def __init__(self, node: Node, paths: Questions) -> None:
        self._node = node
        self._paths = paths

    def __bool__(self) -> bool:
        if _known(self) is None:
            return False
        if self._node.kind not in _TRUTHS:
            raise NotTraceable("asks for the truth of a value of a type that is not compiled")
        return self._paths.answer(self._node)

    def __contains__(self, part: Any) -> bool:
        _text_of(self)
        if type(part) is not str:
            raise NotTraceable("looks for a value in another")
        return self._paths.answer(self._paths.node("contains", (self._node, part), "bool"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise NotTraceable("asks for a value")
        if _known(self) is None:
            raise AttributeError(name)
        kind = self._node.kind
        if name in _PARTS[kind]:
            return _made(self, name, "int")
        if kind == "other":
            raise NotTraceable("uses a value of a type that is not compiled")
        if name not in _METHODS[kind]:
            raise AttributeError(name)
        return Method(self, name)

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotTraceable("asks for a value")

    __iter__ = __len__ = __int__ = __float__ = __index__ = __round__ = __hash__ = _refuse
    __str__ = __repr__ = __format__ = _refuse


class Sliced(Value):
    """A value that looks like a container, as text does. Python formats with such a one: ``"text" % value``."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> Any:
        _text_of(self)
        if type(place) is slice and place.step is None and all(_is_place(one) for one in (place.start, place.stop)):
            return _made(self, "slice", "str", place.start or 0, place.stop)
        raise NotTraceable("takes one character, or a slice that is not compiled")


class Method:
    """The proxy for a method of a value, to be called and nothing else."""

    __slots__ = ("_name", "_value")

    def __init__(self, value: Value, name: str) -> None:
        self._value = value
        self._name = name

    def __call__(self, *arguments: Any) -> Any:
        value, name = self._value, self._name
        if name in ("lower", "upper", "strip") and not arguments:
            return _made(value, name, "str")
        if name in ("weekday", "isoweekday") and not arguments:
            return _made(value, name, "int")
        if name in ("startswith", "endswith") and len(arguments) == 1 and type(arguments[0]) is str:
            return _made(value, name, "bool", arguments[0])
        raise NotTraceable(f"calls .{name} of a value")

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotTraceable("uses a method without calling it")

    __bool__ = __hash__ = __eq__ = __ne__ = __str__ = __repr__ = _refuse


_DAYS: Final = frozenset({"weekday", "isoweekday"})
_NONE: Final[frozenset[str]] = frozenset()
_METHODS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("int", "float", "bool", "other"), _NONE),
    "str": frozenset({"lower", "upper", "strip", "startswith", "endswith"}),
    "time": _DAYS,
    "date": _DAYS,
}
_PARTS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("int", "float", "bool", "str", "other"), _NONE),
    "date": frozenset({"year", "month", "day"}),
    "time": frozenset({"year", "month", "day", "hour", "minute", "second", "microsecond"}),
}
_TRUTHS: Final = ("int", "float", "bool", "str")
_NUMBERS: Final = ("bool", "int", "float")
KINDS: Final[Mapping[type, Kind]] = {
    int: "int", float: "float", bool: "bool", str: "str", datetime: "time", date: "date"
}  # fmt: skip
_OF_KINDS: Final[Mapping[str, type]] = {"int": int, "str": str}
_INT_MAX: Final = (1 << 63) - 1


def _value(node: Node, paths: Questions) -> Value:
    return (Value if paths.outside.has_remainders else Sliced)(node, paths)


def _made(value: Value, operation: str, kind: Kind, *more: Any) -> Value:
    return _value(value._paths.node(operation, (value._node, *more), kind), value._paths)


def _kind_of(operand: Any) -> Kind | None:
    """Return the kind of a proxy or a constant; None of one of no kind."""
    if isinstance(operand, Value):
        return operand._node.kind
    if type(operand) is int and abs(operand) > _INT_MAX:
        raise NotTraceable("uses an integer beyond 64 bits")
    if type(operand) is datetime and (operand.tzinfo is not None or operand.fold):
        raise NotTraceable("uses a time with a zone")
    return KINDS.get(type(operand))


def _is_place(place: Any) -> bool:
    return place is None or (type(place) is int and place >= 0)


def _known(operand: Any) -> Any:
    """Return an operand; None instead of a proxy for a field that has None on the present path."""
    if not isinstance(operand, Value) or operand._node.operation != "field":
        return operand
    paths, (name,) = operand._paths, operand._node.arguments
    is_null = name in paths.nullable and paths.answer(paths.node("null", (name,), "bool"))
    return None if is_null else operand


def _text_of(value: Value) -> None:
    if _known(value) is None:
        raise TypeError("None")
    if value._node.kind != "str":
        raise NotTraceable("uses a value as text that is not text")


def _calculated(name: str, left: Any, right: Any) -> Any:
    """Return what arithmetic on two operands gives, at least one of which is a proxy."""
    paths = (left if isinstance(left, Value) else right)._paths
    left, right = _known(left), _known(right)
    kinds = (_kind_of(left), _kind_of(right))
    if "other" in kinds or kinds[0] in ("time", "date") or kinds[1] in ("time", "date"):
        raise NotTraceable("calculates with values of a type that is not compiled")
    kind = _result_kind(name, *kinds)
    if kind is None:
        raise TypeError(name)  # as Python does with these kinds
    return _value(paths.node(name, (_plain(left), _plain(right)), kind), paths)


def _result_kind(name: str, left: Kind | None, right: Kind | None) -> Kind | None:
    if name == "add" and left == right == "str":
        return "str"
    if "str" in (left, right) and name in ("mod", "mul"):
        raise NotTraceable("repeats or formats text")
    if left not in _NUMBERS or right not in _NUMBERS:
        return None
    if name in ("and", "or", "xor"):
        if "float" in (left, right):
            return None
        return "bool" if left == right == "bool" else "int"
    if name == "truediv":
        return "float"
    return "float" if "float" in (left, right) else "int"


def _compared(name: str, left: Any, right: Any) -> Any:
    paths = (left if isinstance(left, Value) else right)._paths
    left, right = _known(left), _known(right)
    if left is None or right is None:
        if name in ("eq", "ne"):
            return (left is right) is (name == "eq")
        raise TypeError(name)
    kinds = (_kind_of(left), _kind_of(right))
    if "other" in kinds:
        raise NotTraceable("compares values of a type that is not compiled")
    if kinds[0] == kinds[1] or (kinds[0] in _NUMBERS and kinds[1] in _NUMBERS):
        return _value(paths.node(name, (_plain(left), _plain(right)), "bool"), paths)
    if None in kinds and type(left if kinds[0] is None else right) not in (bytes, tuple):
        raise NotTraceable("compares a value with something that is not a constant")
    if {"time", "date"} == set(kinds):
        raise NotTraceable("compares a date with a time")
    if name in ("eq", "ne"):
        return name == "ne"
    raise TypeError(name)  # as Python does with these kinds


def _plain(operand: Any) -> Any:
    return operand._node if isinstance(operand, Value) else operand


def _add_operators() -> None:
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor"):
        setattr(Value, f"__{name}__", lambda left, right, name=name: _calculated(name, left, right))
        setattr(Value, f"__r{name}__", lambda right, left, name=name: _calculated(name, left, right))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Value, f"__{name}__", lambda left, right, name=name: _compared(name, left, right))
    for name in ("neg", "pos", "abs"):
        setattr(Value, f"__{name}__", lambda one, name=name: _unary(name, one))


def _unary(name: str, one: Value) -> Value:
    kind = one._node.kind
    if kind == "other":
        raise NotTraceable("calculates with values of a type that is not compiled")
    if _known(one) is None or kind not in _NUMBERS:
        raise TypeError(name)
    return _made(one, name, "float" if kind == "float" else "int")


_add_operators()


# Tables: dicts, sets and lists of constants. Only they may be searched for a proxy, whose hash is not known.


def _equal_to(sought: Any, elements: Collection[Any]) -> tuple[Any, ...]:
    """Return the element that is equal to ``sought``, or nothing. TypeError if ``sought`` cannot be looked up."""
    parts = sought if type(sought) is tuple else (sought,)
    for part in parts:
        if not isinstance(part, Value | tuple):
            hash(part)
    return next(((one,) for one in elements if one is sought or one == sought), ())


def _is_among(sought: Any, elements: Collection[Any]) -> bool:
    sought = _known(sought)
    kind = _OF_KINDS.get(sought._node.kind) if isinstance(sought, Value) else None
    if kind is None or not elements or set(map(type, elements)) != {kind}:
        return bool(_equal_to(sought, elements))
    paths = sought._paths
    found: bool = paths.answer(paths.node("in", (sought._node, tuple(sorted(elements))), "bool"))
    return found


class Table(dict[Any, Any]):
    """A dict of constants from outside."""

    def __contains__(self, key: Any) -> bool:
        return _is_among(key, self.keys())

    def __getitem__(self, key: Any) -> Any:
        for found in _equal_to(key, self.keys()):
            return super().__getitem__(found)
        raise KeyError

    def get(self, key: Any, default: Any = None) -> Any:
        for found in _equal_to(key, self.keys()):
            return super().__getitem__(found)
        return default

    def __ior__(self, other: Any) -> NoReturn:  # type: ignore[misc]
        _change()


def _hide(self: Any, *_: Any) -> NoReturn:
    raise NotTraceable("shows or combines a set or a function from outside")


class _Set(frozenset[Any]):
    """Can only be searched: a copy may have another order, and another text."""

    def __contains__(self, key: Any) -> bool:
        return _is_among(key, list(super().__iter__()))

    __iter__ = __repr__ = __str__ = __or__ = __and__ = __sub__ = __xor__ = _hide
    __ror__ = __rand__ = __rsub__ = __rxor__ = _hide
    __ior__ = __iand__ = __isub__ = __ixor__ = lambda self, other: _change()


class Callee:
    """A function in place of another one: it can only be called."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._call(*given, **named)

    __repr__ = __str__ = __eq__ = __hash__ = _hide


class _List(list[Any]):
    __iadd__ = __imul__ = lambda self, other: _change()  # type: ignore[assignment]


def _change() -> NoReturn:
    raise NotTraceable("changes a table that it has from outside")


def replaced(value: Any) -> Any:
    """Return a table that can be searched for proxies, and a function that can only be called; others unchanged."""
    kinds: dict[type, Callable[[Any], Any]] = {dict: Table, set: _Set, frozenset: _Set, list: _List}
    kinds[FunctionType] = Callee
    return kinds[type(value)](value) if type(value) in kinds else value


# Builtins


def _length(thing: Any) -> Any:
    thing = _known(thing)
    if not isinstance(thing, Value):
        return len(thing)
    _text_of(thing)
    return _made(thing, "length", "int")


def _number(to: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
    def convert(thing: Any = 0, *more: Any) -> Any:
        thing = _known(thing)
        if not isinstance(thing, Value):
            return to(thing, *more)
        if more or thing._node.kind not in _NUMBERS:
            raise NotTraceable("reads a number from text")
        return _made(thing, kind, kind)

    return convert


def _as_text(thing: Any = "", *more: Any) -> Any:
    thing = _known(thing)
    if not isinstance(thing, Value):
        return str(thing, *more) if type(thing) in (str, int, float, bool, type(None)) else _hide(thing)
    if more or thing._node.kind not in ("int", "str"):
        raise NotTraceable("makes text of a value that is not an integer")
    return _made(thing, "text", "str")


_CALLED: Final = {"len": _length, "int": _number(int, "int"), "float": _number(float, "float"), "str": _as_text}
OVERLAY: Final[Mapping[str, Any]] = {name: Callee(call) for name, call in _CALLED.items()}
