"""A value that no column can hold is named, with what to make of it, by each sink of columns and of text."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.data.unfit_values import why_unfit
from malstrom_py.errors import SinkError

VALUES = [
    (2**63, "an int beyond 64 bits: make it"),
    (-(2**63) - 1, "an int beyond 64 bits: make it"),
    (Decimal("NaN"), "a Decimal that is NaN or infinite: make it"),
    (Decimal("-Infinity"), "a Decimal that is NaN or infinite: make it"),
    (Decimal(10**80), "a Decimal of more than 76 digits: round it"),
    ("a\ud800", "text that is not valid Unicode, with a lone surrogate: repair it"),
]


@pytest.mark.parametrize("inside", [lambda value: value, lambda value: [value], lambda value: {"x": value}])
@pytest.mark.parametrize(("value", "words"), VALUES, ids=[words[:30] for _, words in VALUES])
@pytest.mark.parametrize("target", ["parquet", "spark"])
def test_the_error_says_what_the_value_is_and_what_to_make_of_it(
    tmp_path: Path, value: Any, words: str, inside: Any, target: str
) -> None:
    job = mp.Job("docs")
    sink: Any = sinks.Files(tmp_path, format="parquet") if target == "parquet" else sinks.Spark(path=tmp_path)
    job.source("in", sources.Memory([{"a": inside(value)}])).sink("out", sink)
    with pytest.raises(SinkError, match=f"column 'a' holds {words}"):
        mp.run(job)


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_lone_surrogates_in_text_and_in_names(tmp_path: Path, format: Any) -> None:
    for row, words in (({"b": 1, "a": "\ud800"}, "column 'a' holds text"), ({"\ud800": 1}, "a column's name is")):
        job = mp.Job("docs")
        job.source("in", sources.Memory([row])).sink("out", sinks.Files(tmp_path, format=format))
        with pytest.raises(SinkError, match=f"{words} .*lone surrogate: repair it"):
            mp.run(job)


def test_other_values_are_not_blamed() -> None:
    assert why_unfit([2**63 - 1, -(2**63), True, None, Decimal("1e300"), "a", [b"x"], {"x": 1.5}]) is None


def test_a_table_name_with_a_space_says_how_to_write_it() -> None:
    for make in (sinks.Spark, sources.Spark):
        with pytest.raises(mp.PlanError, match=r"table 'my sales' has a space: .* in back-quotes"):
            make(table="my sales")
        make(table="shop.`my sales`")
