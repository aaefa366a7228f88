"""What nodes say of their records: a pyarrow schema or a Python type. What can be compared is compared.

Rule: in doubt two things fit. Neither pyarrow is imported here nor a record looked at.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from malstrom_py.errors import PlanError

_ALSO_TAKEN = {float: (int,), complex: (int, float)}
"""What Python's typing takes for a float, and for a complex number."""


def check_schema(schema: Any, node: str) -> Any:
    """``schema``, if it is None, a ``pyarrow.Schema`` or a type, else `PlanError` naming ``node``."""
    if schema is None or schema is Any or is_schema(schema) or isinstance(schema, type) or get_origin(schema):
        return schema
    raise PlanError(
        f"node {node!r}: a schema is a pyarrow.Schema or a type such as int or dict[str, float], "
        f"got {type(schema).__name__}"
    )


def mismatch(given: Any, taken: Any) -> str | None:
    """Why records of ``given`` cannot be taken as ``taken``; None if they can, or if that cannot be told.

    >>> mismatch(str, int)
    'str is not int'
    >>> mismatch(bool, int | None), mismatch(int, float), mismatch(list[int], list), mismatch(None, int)
    (None, None, None, None)

    A schema without fields says nothing, as None does: it fits with everything.
    """
    if any(one is None or _says_nothing(one) for one in (given, taken)):
        return None
    if is_schema(given) and is_schema(taken):
        return _difference(given, taken)
    # The rows of a schema are dicts.
    given, taken = (dict if is_schema(one) else one for one in (given, taken))
    return None if _fits(given, taken) else f"{_shown(given)} is not {_shown(taken)}"


def is_schema(schema: Any) -> bool:
    """Whether ``schema`` is a ``pyarrow.Schema``, told without importing pyarrow."""
    kind = type(schema)
    return kind.__name__ == "Schema" and kind.__module__.partition(".")[0] == "pyarrow"


def _says_nothing(schema: Any) -> bool:
    return is_schema(schema) and not schema.names


def _difference(given: Any, taken: Any) -> str | None:
    if given.equals(taken):
        return None
    if given.names != taken.names:
        missing = [f"{name!r} is missing" for name in taken.names if name not in given.names]
        more = [f"{name!r} is not asked for" for name in given.names if name not in taken.names]
        return "; ".join([*missing, *more]) or f"the fields come as {given.names}, not as {taken.names}"
    told = []
    for here, there in zip(given, taken, strict=True):
        if here.type != there.type:
            told.append(f"{here.name!r} is {here.type}, not {there.type}")
        elif here.nullable and not there.nullable:
            told.append(f"{here.name!r} may be null")
    return "; ".join(told) or None


def _fits(given: Any, taken: Any) -> bool:
    if given == taken or not {Any, object}.isdisjoint((given, taken)):
        return True
    if _is_union(given):
        return all(_fits(one, taken) for one in get_args(given))
    if _is_union(taken):
        return any(_fits(given, one) for one in get_args(taken))
    here, there = get_origin(given) or given, get_origin(taken) or taken
    if not isinstance(here, type) or not isinstance(there, type):
        return True
    if here is there:
        inside = get_args(given), get_args(taken)
        return len(inside[0]) != len(inside[1]) or all(map(_fits, *inside))
    try:
        return issubclass(here, there) or here in _ALSO_TAKEN.get(there, ())
    except TypeError:  # of a protocol or a typed dict, which refuse the question
        return True


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _shown(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and not get_args(kind) else str(kind)
