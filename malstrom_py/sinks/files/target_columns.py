"""The columns into which rows are converted: those of ``schema=``, or of the Spark table that is appended to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.data.schema import ColumnKind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TargetColumns:
    """Columns by name. ``table``: the table that has them; None for those of ``schema=``.

    ``required``: the places, such as ``"a"``, ``"a.x"`` and ``"a[]"``, where None is refused. ``lengths``: the largest
    number of characters, by place.
    """

    schema: pa.Schema
    required: frozenset[str] = frozenset()
    table: str | None = None
    lengths: Mapping[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(init=False)
    """The names of the columns, by what `folded` makes of them."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", {self.folded(name): name for name in self.schema.names})

    def __contains__(self, name: object) -> bool:
        """Whether there is a column of that name."""
        return isinstance(name, str) and self.folded(name) in self.names

    @property
    def is_table(self) -> bool:
        """Whether they are those of a table."""
        return self.table is not None

    @property
    def where(self) -> str:
        """What has the columns, for messages."""
        return f"table {self.table!r}" if self.is_table else "the schema of the sink"

    def folded(self, name: str) -> str:
        """Return ``name`` in the form by which names are compared: Spark's tables do not heed case."""
        return name.lower() if self.is_table else name


def required_places(schema: Any) -> frozenset[str]:
    """Return the places of a ``pyarrow.Schema`` or ``StructType`` that are not nullable.

    >>> import pyarrow as pa
    >>> sorted(required_places(pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])))
    ['a']
    """
    return frozenset(place for each in schema for place in _required(each.name, each))


def _required(path: str, item: Any) -> Iterator[str]:
    """Yield the places in a field, of Arrow or of Spark, that are not nullable."""
    if not item.nullable:
        yield path
    kind = item.dataType if hasattr(item, "dataType") else item.type
    for place, inner in _inside(kind):
        yield from _required(f"{path}{place}", inner)


_SHORT_TYPE: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata in which Spark keeps the type of a column with ``char`` or ``varchar``, which it shows as ``string``."""


def length_limits(schema: Any) -> dict[str, int]:
    """Return the places of a ``StructType`` that are ``char(n)`` or ``varchar(n)``, each with its ``n``."""
    if not hasattr(schema, "simpleString"):
        return {}
    found: dict[str, int] = {}
    for each in schema:
        short = (each.metadata or {}).get(_SHORT_TYPE)
        found |= _limits(each.name, each.dataType if short is None else type(schema).fromDDL(short))
    return found


def _limits(path: str, kind: Any) -> dict[str, int]:
    if type(kind).__name__ in {"CharType", "VarcharType"}:
        return {path: kind.length}
    found: dict[str, int] = {}
    for place, inner in _inside(kind):
        found |= _limits(f"{path}{place}", inner.dataType if hasattr(inner, "dataType") else inner.type)
    return found


@dataclass(frozen=True)
class _Item:
    """What is inside a list or map."""

    type: Any
    nullable: bool


def _inside(kind: Any) -> list[tuple[str, Any]]:
    """Return the fields inside a type, of Arrow or of Spark, by their places."""
    if hasattr(kind, "simpleString"):
        if hasattr(kind, "elementType"):
            return [("[]", _Item(kind.elementType, kind.containsNull))]
        if hasattr(kind, "valueType"):
            return [("[value]", _Item(kind.valueType, kind.valueContainsNull))]
        return [(f".{each.name}", each) for each in getattr(kind, "fields", ())]
    match kind_of(kind):
        case ColumnKind.STRUCT:
            return [(f".{each.name}", each) for each in kind]
        case ColumnKind.LIST:
            return [("[]", kind.value_field)]
        case ColumnKind.MAP:
            return [("[value]", kind.item_field)]
    return []


def null_place(required: Collection[str], path: str, array: pa.Array) -> str | None:
    """Return a place of ``required``, in the column at ``path``, where ``array`` has a None; None if there is none.

    >>> import pyarrow as pa
    >>> null_place({"a.x"}, "a", pa.array([{"x": 1}, None])), null_place({"a.x"}, "a", pa.array([{"x": None}]))
    (None, 'a.x')
    """
    if not any(place.startswith(path) for place in required):
        return None
    if path in required and array.null_count:
        return path
    for place, inner in _columns_inside(array):
        if found := null_place(required, f"{path}{place}", inner):
            return found
    return None


def long_place(lengths: Mapping[str, int], path: str, array: pa.Array) -> tuple[str, int] | None:
    """Return a place of ``lengths``, in the column at ``path``, where a text is too long, with the length of the text.

    Spaces at the end do not count: Spark cuts them off.

    >>> import pyarrow as pa
    >>> long_place({"a[]": 2}, "a", pa.array([["xy ", None], None])), long_place({"a": 2}, "a", pa.array(["äöü"]))
    (None, ('a', 3))
    """
    import pyarrow.compute

    if not any(place.startswith(path) for place in lengths):
        return None
    if path in lengths:
        pc: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
        longest = pc.max(pc.utf8_length(pc.utf8_rtrim(array, " "))).as_py() or 0
        return (path, longest) if longest > lengths[path] else None
    found = (long_place(lengths, f"{path}{place}", inner) for place, inner in _columns_inside(array))
    return next(filter(None, found), None)


def _columns_inside(array: pa.Array) -> list[tuple[str, pa.Array]]:
    """Return the columns inside ``array``, without the values at its missing rows."""
    valid = array.filter(array.is_valid()) if array.null_count else array
    match kind_of(array.type):
        case ColumnKind.STRUCT:
            return [(f".{each.name}", column) for each, column in zip(array.type, valid.flatten(), strict=True)]
        case ColumnKind.LIST:
            return [("[]", valid.flatten())]
        case ColumnKind.MAP:
            start, end = valid.offsets[0].as_py(), valid.offsets[-1].as_py()
            return [("[value]", valid.items.slice(start, end - start))]
    return []
