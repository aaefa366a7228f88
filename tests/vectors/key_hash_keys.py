"""The keys of tests/vectors/key_hash.json: the names in their expressions, and their hashes in this Python.

Needs nothing but the standard library and the modules that hash, so that any Python on the machine can run it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from malstrom_py.rescale.keys.key_hash import encode_key, hash_key
from malstrom_py.rescale.slots import slot_of

FILE = Path(__file__).with_name("key_hash.json")


class Suit(Enum):
    """Identified by its class and name; the value does not count."""

    HEARTS = object()


class Level(IntEnum):
    """An int."""

    LOW = 1
    HIGH = 2


class Color(StrEnum):
    """A str."""

    RED = "red"


class Access(Flag):
    """Identified by its class and bits."""

    READ = 1
    WRITE = 2


class Point(NamedTuple):
    """A tuple."""

    x: int
    y: int


@dataclass(frozen=True)
class Seat:
    """Identified by its class and the fields that are compared."""

    row: int
    letter: str
    note: str = field(default="", compare=False)


NAMES: dict[str, Any] = {
    thing.__name__: thing
    for thing in (Access, Color, Decimal, Level, Point, Seat, Suit, UUID, date, datetime, time, timedelta, timezone)
} | {"UTC": UTC, "inf": float("inf")}


def key_of(expression: str) -> Any:
    """Return the key of an expression of the file."""
    return eval(expression, dict(NAMES))


def published() -> list[dict[str, Any]]:
    """Return the rows of the file: key, equal (other keys that are equal to it), encoding, hash, slot of 1024."""
    rows: list[dict[str, Any]] = json.loads(FILE.read_text())["vectors"]
    return rows


def row_of(expression: str, equal: list[str]) -> dict[str, Any]:
    """Compute the row of an expression in this Python."""
    key = key_of(expression)
    return {
        "key": expression,
        "equal": equal,
        "encoding": encode_key(key).hex(),
        "hash": f"{hash_key(key):016x}",
        "slot_of_1024": slot_of(key, 1024),
    }


def recompute() -> list[dict[str, Any]]:
    """Compute the rows of the file in this Python."""
    return [row_of(row["key"], row["equal"]) for row in published()]
