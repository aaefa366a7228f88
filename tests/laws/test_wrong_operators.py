"""Each law has teeth: a step that breaks it, and no other before it, is found, and named by that law."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from malstrom_py.testing import LAWS, LawError, check_operator
from malstrom_py.testing.check_operator import _Search
from tests.laws.wrong_changes import CHANGES
from tests.laws.wrong_movers import MOVERS
from tests.laws.wrong_operators import WRONG

ALL = [*WRONG, *MOVERS, *CHANGES]


@pytest.fixture(autouse=True)
def first_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """End each search at its first failure: the smallest one is the subject of `tests/unit/testing`."""
    search = _Search._test
    monkeypatch.setattr(_Search, "_test", lambda self, holds, *, shrink: search(self, holds, shrink=False))


@pytest.mark.parametrize(
    ("law", "factory", "options"),
    [(law, factory, options) for law, _, factory, options in ALL],
    ids=[f"{law}: {name}" for law, name, _, _ in ALL],
)
def test_a_wrong_step_is_named_by_the_law_it_breaks(
    law: str, factory: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    error = first_error(factory, options, law)
    assert str(error).startswith(f"law {law!r} is broken")
    assert "input (" in error.case


def first_error(factory: Callable[[Any], Any], options: dict[str, Any], law: str) -> LawError:
    """Return what a search finds. One of several seeds must name the law: the cases of a seed change with the code.

    (Hypothesis draws the constants of the modules that it tests, too.) A step may break more than one law. Most break
    it in the first cases, so few are tried first: all earlier laws are checked in as many.
    """
    found: list[str] = []
    for seed in range(8):
        try:
            check_operator(factory, seed=seed, **{"max_examples": 10 * (seed + 1)} | options)
        except LawError as error:
            if error.law == law:
                return error
            found.append(error.law)
    raise AssertionError(f"not found: {law}, but {found}")


def test_each_law_has_a_wrong_step() -> None:
    assert {law.name for law in LAWS} == {law for law, *_ in ALL}
