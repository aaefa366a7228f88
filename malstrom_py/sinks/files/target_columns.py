"""The columns into which rows are converted: those of ``schema=``, or of the Spark table that is appended to."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from malstrom_py.data.schema import ColumnKind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class TargetColumns:
    """Columns by name. ``table``: the table that has them; None for those of ``schema=``.

    ``required``: the places, such as ``"a"``, ``"a.x"`` and ``"a[]"``, where None is refused.
    """

    schema: pa.Schema
    required: frozenset[str] = frozenset()
    table: str | None = None
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
