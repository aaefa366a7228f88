"""Names are ids: strict, and refused early when they are not legal."""

from __future__ import annotations

from typing import Any

import pytest

from malstrom_py.errors import PlanError
from malstrom_py.validation import check_name


@pytest.mark.parametrize("name", ["a", "A-1_z", "-", "0", "x" * 64])
def test_a_legal_name_is_given_back(name: str) -> None:
    assert check_name(name, "step") == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a b", "a.b", "a/b", "é", "a\n", "\u0661", "..", "a:b", " a"])
def test_an_illegal_name_is_refused_with_what_would_be_legal(name: str) -> None:
    with pytest.raises(PlanError, match=r"step name .* is not legal: use 1 to 64 letters, digits, '_' or '-'"):
        check_name(name, "step")


@pytest.mark.parametrize("name", [None, 7, b"bytes", len])
def test_what_is_no_str_is_refused_with_how_it_is_written(name: Any) -> None:
    with pytest.raises(PlanError, match=r"the name of a job must be a str, got .*mp\.Job\('orders'\)"):
        check_name(name, "job")
    with pytest.raises(PlanError, match=r"the name of a step must be a str, got .*\.map\('double', fn\)"):
        check_name(name, "step")
