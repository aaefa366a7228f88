"""Processors of PySpark obey the laws of every keyed step, like a logic that was written for it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st

from malstrom_py import spark
from malstrom_py.testing import check_operator
from tests.spark_processors import COUNTED, SEEN, SILENT, Silence, Stock, Sum, SumInPandas, silent

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


def test_laws_of_a_function_with_timeouts() -> None:
    function = partial(silent, pause_ms=5)
    report = check_operator(
        lambda stream: spark.apply_in_pandas_with_state(
            stream, "step", function, SILENT, SEEN, timeout="EventTimeTimeout"
        ),
        values=ROWS,
        timed=True,
    )
    assert all(report.cases.values()), report
