"""Counts of a run as rows: one for each step, in the order of the plan, with every column."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.errors import SourceError
from malstrom_py.sinks.output_record import JobOutput, read_output
from malstrom_py.spark.data_source import COUNTS, counts_of


def test_every_count_of_a_run_is_a_column(tmp_path: Path) -> None:
    job = mp.Job("counted")
    job.source("in", sources.Memory([1, 2, 3])).filter("odd", lambda n: n % 2).sink("out", sinks.Files(tmp_path))
    result = mp.run(job)
    rows = counts_of(read_output(tmp_path, "counted"))
    assert [row["step"] for row in rows] == list(result.steps)
    columns = re.findall(r"(?:^|, )(\w+) ", COUNTS.replace("string, bigint", ""))
    for row, counts in zip(rows, result.steps.values(), strict=True):
        assert list(row) == columns
        assert {name: row[name] for name in counts.__slots__} == {
            name: getattr(counts, name) for name in counts.__slots__
        }


def test_a_record_without_counts_says_so() -> None:
    with pytest.raises(SourceError, match="job 'docs' has stored no counts with its output"):
        counts_of(JobOutput("docs", "s1", None, {}))
