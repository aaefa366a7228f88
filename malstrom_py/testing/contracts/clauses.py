"""Shared checks of all contracts: a clause, and a plain position."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from malstrom_py.codec import Codec
from malstrom_py.errors import CodecError
from malstrom_py.testing.exact import same
from malstrom_py.testing.law_error import LawError

T = TypeVar("T")

PLAIN: Final = (type(None), bool, int, float, str, bytes, list, tuple, dict)


def copied(thing: T) -> T:
    """Return a copy by cloudpickle, as another process has it."""
    import cloudpickle

    copy: T = cloudpickle.loads(cloudpickle.dumps(thing))
    return copy


def require(holds: bool, clause: str, what: str, case: str = "") -> None:
    """Raise `LawError` naming ``clause`` unless ``holds``."""
    if not holds:
        raise LawError(clause, what, case=f"  {case}" if case else "")


def require_plain(position: Any, clause: str, where: str) -> None:
    """Check that a position consists of plain types, and that its stored form restores it exactly."""
    culprit = _not_plain(position)
    require(
        culprit is None,
        clause,
        "an offset consists of numbers, str, bytes, list, dict and None",
        f"{where}: it holds a {culprit.__name__ if culprit else ''}",
    )
    codec = Codec()
    try:
        back = codec.decode_at_rest(codec.encode_at_rest(position, step="contract"), step="contract")
    except CodecError as error:
        raise LawError(clause, "an offset can be stored", case=f"  {where}: {error}") from error
    require(same(back, position), clause, "a stored offset is restored", f"{where}: {position!r} became {back!r}")


def _not_plain(value: Any) -> type | None:
    if type(value) not in PLAIN:
        return type(value)
    inside: list[Any] = []
    if isinstance(value, dict):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple):
        inside = list(value)
    return next((culprit for culprit in map(_not_plain, inside) if culprit is not None), None)
