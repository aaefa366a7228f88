"""Contracts with defaults: a base class states all members, and an object of a user may leave out the optional ones.

Rule: an object of a user comes in at one place, where its members are checked and `Plain` supplies those that it lacks.
Everything after that place reads members that exist and have their types.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from inspect import getattr_static
from math import isfinite
from typing import Any, Final
from weakref import WeakSet

from malstrom_py.errors import PlanError, shown


class Plain:
    """An object that does not inherit its contract, completed: its own members, where it has them, and defaults.

    Members are looked up at each use, because a property may change. A value where the contract has a method counts as
    left out: it is not meant for the contract.
    """

    def __init__(self, given: object, without: Collection[str] = ()) -> None:
        """``without``: members of ``given`` that count as left out."""
        self.given: Final = given
        self._without: Final = without

    def __init_subclass__(cls) -> None:
        contract: type = cls
        for name, stated in members_of(contract).items():
            if name not in vars(cls):
                setattr(cls, name, _looked_up(name, stated))

    def __repr__(self) -> str:
        return repr(self.given)


def plain(contract: type) -> Any:
    """Return the class of those `Plain` objects that have all members of ``contract``."""
    return type(f"Plain{contract.__name__}", (Plain, contract), {})


def _looked_up(name: str, stated: Any) -> property:
    def value(self: Plain) -> Any:
        return stated if name in self._without else getattr(self.given, name, stated)

    def method(self: Plain) -> Any:
        found = None if name in self._without else getattr(self.given, name, None)
        return found if callable(found) else stated.__get__(self)

    return property(method if callable(stated) else value)


@cache
def members_of(contract: type) -> Mapping[str, Any]:
    """Return the public members that ``contract`` and its base classes state, by name."""
    return {
        name: member
        for base in reversed(contract.__mro__)
        for name, member in vars(base).items()
        if not name.startswith("_")
    }


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


_KINDS: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "int": ("a whole number of at least 1", lambda value: type(value) is int and value >= 1),
    "float": ("a number above 0", _is_number),
    "float | None": ("a number above 0, or None", lambda value: value is None or _is_number(value)),
    "str | None": ("a str or None", lambda value: isinstance(value, str | None)),
}
"""What the annotation of an optional value asks of it. All numbers in contracts are sizes or times."""


@cache
def _checked_members(contract: type) -> Sequence[tuple[str, Any, str, Callable[[Any], bool]]]:
    """Return the optional values of ``contract``: name, default, what a value must be, and whether it is."""
    annotated: dict[str, str] = {}
    for base in reversed(contract.__mro__):
        annotated.update(vars(base).get("__annotations__", {}))
    kinds = ((name, stated, annotated.get(name)) for name, stated in members_of(contract).items())
    return [(name, stated, *_KINDS[kind]) for name, stated, kind in kinds if kind in _KINDS]


def check_members(thing: object, contract: type, what: str) -> None:
    """Raise `PlanError` if a value of ``thing`` is not what ``contract`` states; ``what`` names it in the error."""
    for name, stated, wanted, fits in _checked_members(contract):
        try:
            found = getattr(thing, name, stated)
        except Exception:  # a property that cannot be computed yet
            continue
        if not fits(found):
            raise PlanError(f"{what}: {name} of {type(thing).__name__} must be {wanted}, got {shown(found)}")


_TYPO_CHARACTERS_MIN: Final = 9
_TYPO_LIKENESS: Final = 0.9


@cache
def _looked_through(contract: type) -> WeakSet[type]:
    """Return the classes of which no member has a name that is nearly one of ``contract``."""
    return WeakSet()


def refuse_misspelt(thing: object, contract: type, what: str) -> None:
    """Raise `PlanError` if ``thing`` has a member that is nearly called as an optional one that it leaves out."""
    members, known = members_of(contract), _looked_through(contract)
    given = getattr(thing, "__dict__", ()) if type(thing) in known else dir(thing)
    others = [name for name in given if len(name) >= _TYPO_CHARACTERS_MIN and name not in members]
    optional = [name for name in members if len(name) >= _TYPO_CHARACTERS_MIN and "_" in name]
    for name in others:
        if name.startswith("_"):
            continue
        for near in get_close_matches(name, optional, 1, _TYPO_LIKENESS):
            if getattr_static(thing, near, members[near]) is members[near]:
                raise PlanError(f"{what}: {type(thing).__name__} has {name!r}, which nothing reads: write {near!r}")
    known.add(type(thing))
