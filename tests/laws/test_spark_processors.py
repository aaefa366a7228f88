"""Processors of PySpark obey the laws of every keyed step, like a logic that was written for it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from malstrom_py import spark
from malstrom_py.testing import check_operator
from tests.spark_processors import COUNTED, Silence, Stock, Sum, SumInPandas

ROWS = st.fixed_dictionaries({"n": st.integers(-3, 3), "item": st.sampled_from(["x", "y"]), "at_ms": st.integers(0, 9)})


@pytest.mark.parametrize(
    ("processor", "output", "options", "is_timed"),
    [
        (Sum(), COUNTED, {}, False),
        (Sum(), COUNTED, {}, True),
        (SumInPandas(), COUNTED, {"in_pandas": True}, False),
        (Stock(), Stock.OUTPUT, {}, False),
        (Silence(), Silence.OUTPUT, {"time_mode": "eventTime"}, True),
    ],
    ids=["sum", "sum-timed", "pandas", "stock", "silence"],
)
def test_laws(processor: Any, output: str, options: dict[str, Any], is_timed: bool) -> None:
    report = check_operator(
        lambda stream: spark.stateful(stream, "step", processor, output, **options), values=ROWS, timed=is_timed
    )
    assert all(report.cases.values()), report
