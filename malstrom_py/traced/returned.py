"""What a traced function returns: a column, columns of the fields of dicts, or what is neither."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from malstrom_py.traced.nodes import Choice, Failing, Node, Result, Tree, leaves
from malstrom_py.traced.proxies import KINDS


def fields_returned(tree: Tree) -> list[str] | None:
    """Return the names of the fields of the dicts that the function returns; None if it returns none."""
    found = next((value for value in _values(tree) if isinstance(value, dict)), None)
    return None if found is None else list(found)


def why_no_columns(tree: Tree, *, without_none: bool = False) -> str | None:
    """Return why what the function returns is never a column, or columns of the fields of its dicts.

    ``without_none``: results that are None are left out.
    """
    values, names = _values(tree), fields_returned(tree)
    if without_none:
        values = [value for value in values if value is not None]
    if names is None:
        return _why_not_alike(values)
    if not names or any(not isinstance(value, dict) or list(value) != names for value in values):
        return "returns dicts of different fields, or of none, or values that are no dicts"
    return next((why for name in names if (why := _why_not_alike([value[name] for value in values]))), None)


def by_place(tree: Tree) -> Tree:
    """Return ``tree`` with dicts of what is at each place, in place of tuples of several values.

    >>> why_no_columns(by_place(Result((1, "a"))))
    """
    if isinstance(tree, Choice):
        return replace(tree, yes=by_place(tree.yes), no=by_place(tree.no))
    if isinstance(tree, Failing) or type(tree.value) is not tuple or len(tree.value) < 2:
        return tree
    return replace(tree, value={str(place): value for place, value in enumerate(tree.value)})


def why_no_numbers(tree: Tree) -> str | None:
    """Return why what the function returns is never a number of whole numbers."""
    if all(
        isinstance(value, tuple) and {_result_kind(one) for one in value} <= {"int", "bool"} for value in _values(tree)
    ):
        return None
    return "returns something else than a tuple, list or set of whole numbers"


def _values(tree: Tree) -> list[Any]:
    # Of all paths, also those that no row takes: so that the type of a field never depends on where batches are cut.
    return [leaf.value for leaf in leaves(tree) if isinstance(leaf, Result)]


def _why_not_alike(values: Sequence[Any]) -> str | None:
    """Return why values of all paths have no common type."""
    kinds = {_result_kind(value) for value in values if value is not None}
    if not kinds:
        return "returns nothing but None"
    if None in kinds:
        return "returns a tuple or a list, or a dict in a dict"
    return "returns values of several types" if len(kinds) > 1 else None


def _result_kind(value: Any) -> Any:
    if not isinstance(value, Node):
        return KINDS.get(type(value))
    return value if value.kind == "other" else value.kind
