"""What a type counts as, and what is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntFlag

import numpy as np
import pytest

from malstrom_py.rescale.keys import key_types
from malstrom_py.rescale.keys.key_types import Kind, compared_fields, kind_of
from tests.vectors.key_hash_keys import Access, Color, Level, Point, Seat, Suit


class Mixed(str, Enum):  # noqa: UP042  the older way to write a StrEnum is in use
    """An enum of strings in the older way."""

    A = "a"


class Rights(IntFlag):
    """An int."""

    READ = 1


@dataclass(frozen=True)
class Base:
    x: int


class Derived(Base):
    """Compared as its base is, by class and fields."""


@pytest.mark.parametrize(
    ("key_type", "kind"),
    [
        (type(None), "none"),
        (bool, "int"),
        (Level, "int"),
        (Rights, "int"),
        (Color, "str"),
        (Mixed, "str"),
        (Suit, "enum"),
        (Access, "flag"),
        (Point, "tuple"),
        (Seat, "dataclass"),
        (Derived, "dataclass"),
        (np.int32, "numpy int"),
        (np.bool_, "numpy int"),
        (np.float64, "numpy float"),
        (np.timedelta64, None),
        (np.void, None),
        (list, None),
        (type("Money", (Decimal,), {}), "decimal"),
    ],
    ids=str,
)
def test_a_type_counts_as_what_its_values_equal(key_type: type, kind: Kind | None) -> None:
    assert kind_of(key_type) == kind


def test_fields_that_do_not_take_part_in_equality_are_left_out() -> None:
    assert compared_fields(Seat) == ("row", "letter")


def test_classes_made_at_run_time_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_types, "_TYPES_MAX", 3)
    kinds = [kind_of(type(f"Made{i}", (str,), {})) for i in range(10)]
    assert kinds == ["str"] * 10
    assert len(key_types._KINDS) <= 3
