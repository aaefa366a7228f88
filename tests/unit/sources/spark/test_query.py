"""The arguments of `sources.Spark` are checked at the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from malstrom_py import sources
from malstrom_py.errors import PlanError
from malstrom_py.sources.spark.query import SparkQuery
from tests.ids import shown


def query(**given: Any) -> SparkQuery:
    result: SparkQuery = sources.Spark(**given)._query
    return result


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "takes a DataFrame, or one of table=, sql= and path=: nothing was given"),
    ({"table": "t", "sql": "select 1"}, "takes one of df, table=, sql= and path=, not table and sql together"),
    ({"df": [{"a": 1}]}, "df must be a DataFrame of Spark, got builtins.list"),
    ({"df": object(), "path": "x"}, "not df and path together"),
    ({"table": ""}, "table must be a str that is not empty, got ''"),
    ({"sql": 3}, "sql must be a str that is not empty, got 3"),
    ({"path": []}, "path must be a path or URI that Spark reads, or a list of them, got []"),
    ({"path": ["a", 3]}, "path must be a path or URI"),
    ({"path": "a", "format": 3}, "format must be a str"),
    ({"table": "t", "format": "csv"}, "format is for path=, or for options= alone: leave it out"),
    ({"path": "a", "options": ["header"]}, "options must be those of Spark's reader, name -> value"),
    ({"sql": "select 1", "options": {"header": True}}, "options are for path=, table= or format=: leave them out"),
    ({"path": "a", "columns": "carrier"}, "columns must be a list of names, each once"),
    ({"path": "a", "columns": []}, "columns must be a list of names"),
    ({"path": "a", "columns": ["x", "x"]}, "columns must be a list of names, each once"),
    ({"path": "a", "filter": lambda row: True}, "filter must be SQL text or a Column"),
    ({"path": "a", "filter": " "}, "filter must be SQL text or a Column"),
    ({"path": "a", "staging": 3}, "sources.Spark(staging=) takes a path or a file:// URI, got int"),
    ({"path": "a", "staging": "s3://bucket/x"}, "give a path or file:///path, not 's3://bucket/x'"),
    ({"path": "a", "keep_staging": "yes"}, "keep_staging must be True or False, got 'yes'"),
    ({"path": "a", "session": "local"}, "session must be a SparkSession, got str"),
]


@pytest.mark.parametrize(("given", "message"), WRONG, ids=lambda value: shown(value)[:40])
def test_a_wrong_argument_is_refused_at_the_call(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError) as raised:
        sources.Spark(**given)
    assert str(raised.value).startswith("sources.Spark")
    assert message in str(raised.value)


def test_a_relative_path_is_seen_from_the_working_directory_of_now(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    paths = query(path=["in", Path("/abs"), "hdfs://host/x", "s3a://bucket/x"]).paths
    assert paths == (str(tmp_path / "in"), "/abs", "hdfs://host/x", "s3a://bucket/x")


def test_a_filter_of_arrow_is_for_the_workers_and_any_other_for_spark() -> None:
    expression = pc.field("a") > 1
    assert (query(table="t", filter=expression).keep, query(table="t", filter=expression).filter) == (expression, None)
    assert (query(table="t", filter="a > 1").keep, query(table="t", filter="a > 1").filter) == (None, "a > 1")


def test_it_is_shown_without_the_text_of_a_query() -> None:
    assert repr(sources.Spark(sql="select * from t where password = 'x'")) == "Spark(sql=…)"
    assert repr(sources.Spark(path="/data", format="csv")) == "Spark(path='/data', format='csv')"
    assert repr(sources.Spark(table="db.flights")) == "Spark(table='db.flights')"
