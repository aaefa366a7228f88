"""What `sources.Postgres` reads: the columns of a table or query, an order of its rows, bounds of partitions.

Rules:
- The order of rows is total, but for equal rows: ``split_by`` first, then the primary key of a table, or else a hash of
  the row. So a position is a place in this order, also after rows were inserted or deleted.
- The bounds are values that exist, so that partitions have about the same number of rows. Rows without a value of
  ``split_by`` are one more partition.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.errors import SourceError, lasting

if TYPE_CHECKING:
    import psycopg

NULLS: Final = "null"
"""The partition of rows without a value of ``split_by``."""

_QUERY: Final = re.compile(r"\s*(select|with|values|table)\s", re.IGNORECASE)
_HASH: Final = "encode(sha256(convert_to((q.*)::text, 'UTF8')), 'hex')"


def is_query(text: str) -> bool:
    """Return whether ``text`` is a query, and not the name of a table.

    >>> is_query("SELECT * FROM sales"), is_query("shop.sales")
    (True, False)
    """
    return _QUERY.match(text) is not None


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One item of the order. ``expression``: in SQL, over the rows ``q``; ``type``: what its text is cast to."""

    expression: str
    type: str


@dataclass(frozen=True, slots=True)
class Shape:
    """What is read, as found when the job starts. ``relation``: in SQL, a table or a query in parentheses.

    ``as_text``: the columns of types without a counterpart in Python, such as enums.
    """

    relation: str
    columns: tuple[str, ...]
    order: tuple[OrderKey, ...]
    is_split: bool
    as_text: frozenset[str] = frozenset()

    def record(self) -> dict[str, Any]:
        """Return the shape in plain types."""
        order = [[key.expression, key.type] for key in self.order]
        return {"columns": list(self.columns), "order": order, "is_split": self.is_split}


@dataclass(frozen=True, slots=True)
class Range:
    """The rows of one partition: ``split_by`` above ``low`` and up to ``high``, as text; None is without a bound."""

    part: str
    low: str | None
    high: str | None


def quoted(name: str) -> str:
    """Return the name of a column in SQL.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def find_shape(
    connection: psycopg.Connection[Any], text: str, split_by: str | None, columns: Sequence[str] | None, owner: str
) -> Shape:
    """Return the columns and the order of a table or query."""
    table = None if is_query(text) else _table_of(connection, text, owner)
    relation = f"({text.strip().rstrip(';')}\n)" if table is None else table
    cursor = connection.execute(_text(f"SELECT q.* FROM {relation} AS q LIMIT 0"))
    types = {column.name: column.type_code for column in cursor.description or ()}
    if len(types) < len(cursor.description or ()):
        raise lasting(SourceError(f"{owner}: the query has two columns of one name: rename one with AS"))
    chosen = tuple(types) if columns is None else tuple(columns)
    for name in (*chosen, *((split_by,) if split_by else ())):
        if name not in types:
            known = ", ".join(map(repr, list(types)[:12]))
            raise lasting(SourceError(f"{owner}: there is no column {name!r}; the columns are {known}"))
    keys = [] if table is None else _primary_key(connection, table)
    if split_by is None and keys:
        split_by = keys[0]
    names = [name for name in (split_by, *keys) if name is not None]
    order = [OrderKey(f"q.{quoted(name)}", _type_of(connection, types[name])) for name in dict.fromkeys(names)]
    if not keys:
        order.append(OrderKey(_HASH, "text"))
    as_text = frozenset(name for name in chosen if not _is_known(connection, types[name]))
    return Shape(relation, chosen, tuple(order), split_by is not None, as_text)


def _is_known(connection: psycopg.Connection[Any], oid: int) -> bool:
    """Return whether psycopg makes a value of Python of a type, or of the items of an array.

    Of other types its binary form, in which rows are fetched, is bytes that mean nothing.
    """
    from psycopg.pq import Format

    adapters = connection.adapters
    info = adapters.types.get(oid)
    return info is not None and adapters.get_loader(info.oid, Format.BINARY) is not None


def _text(statement: str) -> bytes:
    """Return SQL that is made of the user's own query and of quoted names: psycopg takes it as bytes."""
    return statement.encode()


def _table_of(connection: psycopg.Connection[Any], text: str, owner: str) -> str:
    found = connection.execute(
        "SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname) FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        [text],
    ).fetchone()
    if found is None:
        raise lasting(SourceError(f"{owner}: there is no table {text} in the database: create it, or correct the name"))
    return str(found[0])


def _primary_key(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """Return the columns of the primary key; none if tables inherit from the table: it says nothing of their rows."""
    rows = connection.execute(
        "SELECT a.attname FROM pg_index i CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS k(number, place) "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number "
        "JOIN pg_class c ON c.oid = i.indrelid "
        "WHERE i.indrelid = to_regclass(%s) AND i.indisprimary AND k.place <= i.indnkeyatts "
        "AND NOT (c.relkind = 'r' AND EXISTS (SELECT 1 FROM pg_inherits h WHERE h.inhparent = c.oid)) "
        "ORDER BY k.place",
        [table],
    )
    return [name for (name,) in rows]


def _type_of(connection: psycopg.Connection[Any], oid: int) -> str:
    found = connection.execute("SELECT format_type(%s, -1)", [oid]).fetchone()
    assert found is not None
    return str(found[0])


def find_ranges(connection: psycopg.Connection[Any], shape: Shape, parts: int) -> list[Range]:
    """Return the ranges of the partitions: at most ``parts``, and one of rows without a value."""
    if not shape.is_split:
        return [Range("0", None, None)]
    by = shape.order[0].expression
    bounds: list[str] = []
    if parts > 1:
        shares = ", ".join(f"{number / parts:.9f}" for number in range(1, parts))
        found = connection.execute(
            _text(
                f"SELECT percentile_disc(ARRAY[{shares}]::float8[]) WITHIN GROUP (ORDER BY {by})::text[] "
                f"FROM {shape.relation} AS q"
            )
        ).fetchone()
        bounds = [] if found is None or found[0] is None else list(dict.fromkeys(found[0]))
    ends = [None, *bounds, None]
    ranges = [Range(f"{number}", ends[number], ends[number + 1]) for number in range(len(bounds) + 1)]
    nulls = connection.execute(_text(f"SELECT 1 FROM {shape.relation} AS q WHERE {by} IS NULL LIMIT 1")).fetchone()
    return ranges if nulls is None else [*ranges, Range(NULLS, None, None)]


def statement_of(shape: Shape, part: Range, after: Sequence[str] | None) -> bytes:
    """Return the query of the rows of a partition at or after the place ``after``.

    Its columns are those of the rows, and then the texts of the order.
    """
    order = order_of(shape, part)
    by = shape.order[0]
    conditions = []
    if shape.is_split:
        conditions.append(f"{by.expression} IS {'' if part.part == NULLS else 'NOT '}NULL")
    for bound, sign in ((part.low, ">"), (part.high, "<=")):
        if bound is not None:
            conditions.append(f"{by.expression} {sign} {literal(bound)}::{by.type}")
    expressions = [key.expression for key in order]
    if after is not None and order:
        places = ", ".join(f"{literal(text)}::{key.type}" for text, key in zip(after, order, strict=True))
        conditions.append(f"ROW({', '.join(expressions)}) >= ROW({places})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    columns = (f"q.{quoted(name)}{'::text' if name in shape.as_text else ''}" for name in shape.columns)
    shown = [*columns, *(f"{each}::text" for each in expressions)]
    ordered = f" ORDER BY {', '.join(expressions)}" if order else ""
    return f"SELECT {', '.join(shown)} FROM {shape.relation} AS q{where}{ordered}".encode()


def order_of(shape: Shape, part: Range) -> Sequence[OrderKey]:
    """Return the order within a partition: rows without a value of ``split_by`` are not ordered by it."""
    return shape.order[1:] if part.part == NULLS else shape.order


def literal(text: str) -> str:
    r"""Return a text in SQL.

    >>> print(literal("it's"))
    E'it\'s'
    """
    return "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
