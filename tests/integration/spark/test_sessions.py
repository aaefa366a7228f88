"""The shared session itself."""

from __future__ import annotations

from typing import Any


def test_a_session_counts_rows(spark: Any, spark_kind: str) -> None:
    assert spark.range(10).count() == 10
    assert ("connect" in type(spark).__module__) == (spark_kind == "connect")
