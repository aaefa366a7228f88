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
    return frozenset(place for each in schema for place, item in _places(each.name, each) if not item.nullable)


_SHORT_TYPE: Final = "__CHAR_VARCHAR_TYPE_STRING"
"""The metadata in which Spark keeps the type of a column with ``char`` or ``varchar``, which it shows as ``string``."""


def length_limits(schema: Any) -> dict[str, int]:
    """Return the places of a ``StructType`` that are ``char(n)`` or ``varchar(n)``, each with its ``n``."""
    if not hasattr(schema, "simpleString"):
        return {}
    found: dict[str, int] = {}
    for each in schema:
        short = (each.metadata or {}).get(_SHORT_TYPE)
        column = each if short is None else _Item(type(schema).fromDDL(short), nullable=True)
        kinds = ((place, _type_of(item)) for place, item in _places(each.name, column))
        found |= {place: kind.length for place, kind in kinds if type(kind).__name__ in {"CharType", "VarcharType"}}
    return found


@dataclass(frozen=True)
class _Item:
    """What is inside a list or map."""

    type: Any
    nullable: bool


def _type_of(item: Any) -> Any:
    """Return the type of a field of Arrow or of Spark, or of an `_Item`."""
    return item.dataType if hasattr(item, "dataType") else item.type


def _places(path: str, item: Any) -> Iterator[tuple[str, Any]]:
    """Yield a field, of Arrow or of Spark, and those at any depth inside it, by their places."""
    yield path, item
    for place, inner in _inside(_type_of(item)):
        yield from _places(f"{path}{place}", inner)


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
    found = (place for place, column in _columns(required, path, array) if column.null_count)
    return next(found, None)


def long_place(lengths: Mapping[str, int], path: str, array: pa.Array) -> tuple[str, int] | None:
    """Return a place of ``lengths``, in the column at ``path``, where a text is too long, with the length of the text.

    Spaces at the end do not count: Spark cuts them off.

    >>> import pyarrow as pa
    >>> long_place({"a[]": 2}, "a", pa.array([["xy ", None], None])), long_place({"a": 2}, "a", pa.array(["äöü"]))
    (None, ('a', 3))
    """
    import pyarrow.compute

    pc: Any = pyarrow.compute  # its functions are created at import, so mypy does not know them
    for place, column in _columns(lengths, path, array):
        longest = pc.max(pc.utf8_length(pc.utf8_rtrim(column, " "))).as_py() or 0
        if longest > lengths[place]:
            return place, longest
    return None


def _columns(wanted: Collection[str], path: str, array: pa.Array) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns at the ``wanted`` places in ``array``, which is at ``path``, without values at missing rows."""
    if not any(place.startswith(path) for place in wanted):
        return
    if path in wanted:
        yield path, array
    valid = array.filter(array.is_valid()) if array.null_count else array
    match kind_of(array.type):
        case ColumnKind.STRUCT:
            inside = [(f".{each.name}", column) for each, column in zip(array.type, valid.flatten(), strict=True)]
        case ColumnKind.LIST:
            inside = [("[]", valid.flatten())]
        case ColumnKind.MAP:
            start, end = valid.offsets[0].as_py(), valid.offsets[-1].as_py()
            inside = [("[value]", valid.items.slice(start, end - start))]
        case _:
            return
    for place, column in inside:
        yield from _columns(wanted, f"{path}{place}", column)
