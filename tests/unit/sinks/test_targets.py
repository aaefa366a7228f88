"""Sinks of one job: a target that is replaced as a whole has one writer, and the plan is refused otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import PlanError


def job(*targets: Any) -> mp.Job:
    made = mp.Job("many")
    stream = made.source("in", sources.Memory([{"n": 1}]))
    for number, sink in enumerate(targets):
        stream.sink(f"out{number}", sink)
    return made


@pytest.mark.parametrize("mode", ["overwrite", "error"])
@pytest.mark.parametrize("other", ["append", "overwrite"])
def test_a_folder_that_one_sink_replaces_is_no_other_sinks(mode: Any, other: Any, tmp_path: Path) -> None:
    replacing, added = sinks.Spark(tmp_path / "out", mode=mode), sinks.Spark(tmp_path / "out", mode=other)
    with pytest.raises(PlanError, match=r"'out0' and 'out1' write to the same .*/out', and 'out0'.* would replace it"):
        job(replacing, added).plan()
    with pytest.raises(PlanError, match="write to the same"):
        job(sinks.Files(tmp_path / "out"), replacing).plan()


def test_a_folder_in_one_that_is_replaced_is_told_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for inner in (tmp_path / "out" / "sub", tmp_path / "link" / "sub", f"file://{tmp_path}/out/sub"):
        with pytest.raises(PlanError, match=r"/out' and .*/sub', and 'out0' would replace it"):
            job(sinks.Spark(tmp_path / "out", mode="overwrite"), sinks.Spark(inner)).plan()


def test_a_table_that_one_sink_replaces_is_no_other_sinks() -> None:
    with pytest.raises(PlanError, match="would replace it"):
        job(sinks.Spark(table="default.Sales", mode="overwrite"), sinks.Spark(table="`sales`")).plan()


def test_sinks_that_add_to_one_place_and_those_of_several_go_together(tmp_path: Path) -> None:
    job(sinks.Spark(tmp_path / "out"), sinks.Spark(tmp_path / "out"), sinks.Files(tmp_path / "out")).plan()
    job(sinks.Spark(tmp_path / "a", mode="overwrite"), sinks.Spark(tmp_path / "ab", mode="overwrite")).plan()
    job(sinks.Spark(table="a", mode="overwrite"), sinks.Spark(tmp_path / "a"), sinks.Memory()).plan()
    job(sinks.Spark(foreach_snapshot=print), sinks.Spark(foreach_snapshot=print), sinks.Stdout()).plan()
