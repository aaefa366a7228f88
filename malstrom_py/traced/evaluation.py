"""What a traced function computes, for all rows of a batch together: path by path, by the operations of `vectors`.

Rule: only what is proven to be what Python computes is computed here. What is not raises `Unproven`, and the function
does the batch row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from malstrom_py.traced.in_python import Unproven, in_python_type, kind_in_python
from malstrom_py.traced.nodes import Failing, Node, Result, Tree
from malstrom_py.traced.returned import fields_returned
from malstrom_py.traced.vectors import BINARY, OTHER, Array, Vector, of_column, of_constant, whole

if TYPE_CHECKING:
    import pyarrow as pa


def truths(tree: Tree, columns: pa.RecordBatch) -> Array:
    """Return for each row whether what the function returns is true, as a vector of numpy. Raises `Unproven`."""
    import numpy as np

    flags = np.zeros(columns.num_rows, np.bool_)
    for rows, value in _leaves(tree, _Rows(columns)):
        flags[slice(None) if rows.places is None else rows.places] = rows.truth(value)
    return flags


def streams(tree: Tree, columns: pa.RecordBatch, count: int) -> Array:
    """Return for each of ``count`` streams which rows go there: those for which the function returns its number.

    `why_no_numbers` is None for ``tree``. Raises `Unproven`.
    """
    import numpy as np

    flags = np.zeros((count, columns.num_rows), np.bool_)
    for rows, numbers in _leaves(tree, _Rows(columns)):
        places = np.arange(len(rows)) if rows.places is None else rows.places
        for number in map(whole, map(rows.of, numbers)):
            if np.any(np.less(number.data, 0)) or np.any(np.greater_equal(number.data, count)):
                raise Unproven
            flags[number.data, places] = True
    return flags


def results(tree: Tree, columns: pa.RecordBatch) -> pa.RecordBatch:
    """Return what the function returns for each row: a column per field of its dicts, or ``value``, the only one.

    `why_no_columns` is None for ``tree``. Raises `Unproven`.
    """
    return _in_columns(_leaves(tree, _Rows(columns)), fields_returned(tree))


def some_results(tree: Tree, columns: pa.RecordBatch) -> tuple[pa.RecordBatch | None, Array]:
    """Return the `results` that are not None, and the places of their rows; None instead of no results."""
    import numpy as np

    ends = [_present(rows, value) for rows, value in _leaves(tree, _Rows(columns))]
    ends = [(rows, value) for rows, value in ends if value is not None and len(rows)]
    if not ends:
        return None, np.zeros(0, np.int64)
    places = [np.arange(len(rows)) if rows.places is None else rows.places for rows, _ in ends]
    return _in_columns(ends, fields_returned(tree)), np.sort(np.concatenate(places))


def _present(rows: _Rows, value: Any) -> tuple[_Rows, Any]:
    """Return those of ``rows`` in which ``value`` is not None."""
    if not isinstance(value, Node) or value.operation != "field":
        return rows, value
    missing = rows.of(Node("null", value.arguments, "bool")).data
    return (rows.where(~missing), value) if missing.any() else (rows, value)


def _in_columns(ends: list[tuple[_Rows, Any]], names: list[str] | None) -> pa.RecordBatch:
    import pyarrow as pa

    if names is None:
        names, ends = ["value"], [(rows, {"value": value}) for rows, value in ends]
    arrays = [_joined([(rows, rows.column_of(value[name])) for rows, value in ends]) for name in names]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def _leaves(tree: Tree, rows: _Rows) -> list[tuple[_Rows, Any]]:
    """Return the rows of each path that some rows take, and what the function returns for them."""
    if not len(rows):
        return []
    if isinstance(tree, Failing):
        raise Unproven
    if isinstance(tree, Result):
        for node in tree.risky:
            rows.of(node)
        return [(rows, tree.value)]
    flags = rows.truth(tree.test)
    count = int(flags.sum())
    if count in (0, len(rows)):
        rows.known[tree.test] = count > 0
        return _leaves(tree.yes if count else tree.no, rows)
    yes, no = rows.where(flags), rows.where(~flags)
    yes.known[tree.test], no.known[tree.test] = True, False
    return _leaves(tree.yes, yes) + _leaves(tree.no, no)


def _joined(parts: Sequence[tuple[_Rows, pa.Array | None]]) -> pa.Array:
    """Return the columns of paths as one, in the order of the rows; None: of nothing but None."""
    import numpy as np
    import pyarrow as pa

    kinds = {column.type for _, column in parts if column is not None}
    if len(kinds) > 1:
        kinds = {_common(kinds)}
    if not kinds:
        raise Unproven  # nothing but None: its type is known by other batches
    (kind,) = kinds
    columns = [pa.nulls(len(rows), kind) if column is None else column.cast(kind) for rows, column in parts]
    if len(parts) == 1:
        return in_python_type(columns[0])
    places = np.concatenate([rows.places for rows, _ in parts])
    order = np.full(int(places.max()) + 1, -1)
    order[places] = np.arange(len(places))
    order = order[order >= 0]  # rows may be left out
    return in_python_type(pa.concat_arrays(columns).take(pa.array(order)))


def _common(types: set[pa.DataType]) -> pa.DataType:
    """Return a type in which values of all ``types`` mean the same in Python."""
    import pyarrow as pa

    kinds = {kind_in_python(one) for one in types}
    known = {"int": pa.int64(), "float": pa.float64(), "str": pa.large_string()}
    if len(kinds) > 1 or (kind := kinds.pop()) not in known:
        raise Unproven
    return known[kind]


class _Rows:
    """Rows of a batch, and the values of nodes in them.

    ``places``: which rows; None: all. ``known``: the tests that all of them have passed or failed.
    """

    def __init__(self, columns: pa.RecordBatch, places: Array = None) -> None:
        self._columns = columns
        self.places = places
        self.known: dict[Node, bool] = {}
        self._values: dict[Node, Vector] = {}
        self._fields: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return self._columns.num_rows if self.places is None else len(self.places)

    def where(self, flags: Array) -> _Rows:
        """Return the rows for which ``flags`` has True."""
        rows = _Rows(self._columns, flags.nonzero()[0] if self.places is None else self.places[flags])
        rows.known.update(self.known)
        return rows

    def field(self, name: str) -> pa.Array:
        """Return a column of the batch in these rows."""
        import pyarrow as pa

        if name not in self._fields:
            column = self._columns.column(name)
            self._fields[name] = column if self.places is None else column.take(pa.array(self.places))
        return self._fields[name]

    def truth(self, value: Any) -> Any:
        """Return whether a result is true, as a vector."""
        import numpy as np
        import pyarrow.compute as pc

        if not isinstance(value, Node):
            return np.full(len(self), bool(value))
        if value in self.known:
            return np.full(len(self), self.known[value])
        if value.operation == "field" and self.field(value.arguments[0]).null_count:
            valid = self.field(value.arguments[0]).is_valid().to_numpy(zero_copy_only=False)
            found = np.zeros(len(self), np.bool_)
            found[valid] = self.where(valid).truth(value)
            return found
        vector = self.of(value)
        if vector.kind == "bool":
            return vector.data
        if vector.kind == "str":
            lengths = pc.call_function("binary_length", [vector.data])
            return pc.call_function("greater", [lengths, 0]).to_numpy(zero_copy_only=False)
        if vector.kind in ("int", "float"):
            return vector.data != 0
        raise Unproven

    def column_of(self, value: Any) -> pa.Array | None:
        """Return a result as a column; None if it is None."""
        import pyarrow as pa

        if value is None:
            return None
        if isinstance(value, Node) and value.operation == "field":
            return self.field(value.arguments[0])
        vector = self.of(value) if isinstance(value, Node) else of_constant(value)
        if not vector.is_constant:
            return vector.data if isinstance(vector.data, pa.Array) else pa.array(vector.data)
        if type(value) is datetime:
            return pa.repeat(pa.scalar(value, pa.timestamp("us")), len(self))
        try:
            return pa.repeat(pa.scalar(value), len(self))
        except (OverflowError, pa.ArrowException, ValueError) as error:
            raise Unproven from error

    def of(self, node: Any) -> Vector:
        """Return the values of a node, or of a constant."""
        if not isinstance(node, Node):
            return of_constant(node)
        if node not in self._values:
            self._values[node] = self._computed(node)
        return self._values[node]

    def _computed(self, node: Node) -> Vector:
        import numpy as np

        operation = node.operation
        if operation == "field":
            return of_column(self.field(node.arguments[0]), node.kind)
        if operation == "null":
            column = self.field(node.arguments[0])
            column = column.dictionary_decode() if hasattr(column, "dictionary") else column
            return Vector("bool", column.is_null().to_numpy(zero_copy_only=False))
        first = self.of(node.arguments[0])
        with np.errstate(all="ignore"):
            if operation in BINARY:
                return BINARY[operation](first, self.of(node.arguments[1]))
            return OTHER[operation](first, *node.arguments[1:])
