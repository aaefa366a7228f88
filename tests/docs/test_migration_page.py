"""docs/migrating-from-bytewax.md has every operator of bytewax 0.21, and what it says is ours is there."""

from __future__ import annotations

import re

from malstrom_py import KeyedStreamBuilder
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "migrating-from-bytewax.md").read_text()

OPERATORS = [
    *("branch", "collect", "count_final", "enrich_cached", "filter", "filter_map", "filter_map_value", "filter_value"),
    *("flat_map", "flat_map_batch", "flat_map_value", "flatten", "fold_final", "input", "inspect", "inspect_debug"),
    *("join", "key_on", "key_rm", "map", "map_value", "max_final", "merge", "min_final", "output", "raises"),
    *("redistribute", "reduce_final", "stateful", "stateful_batch", "stateful_flat_map", "stateful_map"),
]
"""The functions of ``bytewax.operators`` in 0.21.1 whose first argument is a step id."""

WINDOWING = [
    *("collect_window", "count_window", "fold_window", "join_window", "max_window", "min_window", "reduce_window"),
    *("window", "EventClock", "SystemClock", "SlidingWindower", "TumblingWindower", "SessionWindower", "WindowLogic"),
    "WindowOut",
]
"""The same of ``bytewax.operators.windowing``, with its clocks and windowers."""

ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in PAGE.splitlines() if line.startswith("| ")]


def rows_about(name: str) -> list[list[str]]:
    """The rows of the tables whose left cell names an operator of bytewax."""
    named = re.compile(rf"`(?:op\.)?{name}\b")
    return [row for row in ROWS if named.search(row[0])]


def test_every_operator_of_bytewax_has_its_row() -> None:
    for name in OPERATORS:
        (row,) = [row for row in rows_about(name) if row[0].startswith("`op.")]
        assert len(row) == 2
        assert row[1]
    assert [name for name in WINDOWING if not rows_about(name)] == []


def test_the_steps_that_are_named_are_there() -> None:
    linked = re.findall(r"\[`(\w+)`\]\(operators/(?:stateless|keyed|stateful|time)\.md#\w+\)", PAGE)
    assert len(linked) > 15
    assert [name for name in linked if not hasattr(KeyedStreamBuilder, name)] == []
