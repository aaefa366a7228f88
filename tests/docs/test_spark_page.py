"""docs/migrating-from-spark.md names what streaming users of Spark know, and what it says is ours is there."""

from __future__ import annotations

import re

import pytest

from malstrom_py import KeyedStreamBuilder
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "migrating-from-spark.md").read_text()

ASKED_FOR = [
    *("withWatermark", "outputMode", "append", "update", "complete", "trigger", "checkpointLocation", "foreachBatch"),
    *("window(", "session_window", "dropDuplicates", "dropDuplicatesWithinWatermark", "applyInPandasWithState"),
    *("transformWithState", "handleInputRows", "handleExpiredTimer", "handleInitialState", "registerTimer"),
    *("deleteTimer", "getValueState", "getListState", "getMapState", "ttlDurationMs", "setTimeoutDuration"),
    *("setTimeoutTimestamp", "hasTimedOut", "awaitTermination", "mapInArrow", "groupBy", "union", "statestore"),
]
"""What a user of Spark Structured Streaming looks for on the page."""


@pytest.mark.parametrize("name", ASKED_FOR)
def test_what_users_of_spark_know_is_on_the_page(name: str) -> None:
    assert name in PAGE


def test_the_steps_that_are_named_are_there() -> None:
    linked = re.findall(r"\[`(\w+)`\]\((?:operators/\w+|joins|enrich)\.md(?:#\w+)?\)", PAGE)
    assert len(linked) > 15
    assert [name for name in linked if not hasattr(KeyedStreamBuilder, name)] == []
