"""docs/spark.md runs, classic and over Connect; its tables are complete."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from malstrom_py import sinks, sources
from tests.docs.running import run_page
from tests.pages import SPARK


def test_the_page_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_page(SPARK)
    assert spark.range(3).count() == 3, "the session of the program continues"


@pytest.mark.parametrize("end", [sources.Spark, sources.SparkCheckpoint, sinks.Spark])
def test_every_argument_is_on_the_page(end: Any) -> None:
    names = [name for name in inspect.signature(end).parameters if name not in ("df", "path")]
    assert [name for name in names if not re.search(rf"`{name}=", SPARK.read_text())] == []
