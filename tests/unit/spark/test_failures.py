"""Errors of Spark become one line with Spark's words, and the matching error of the job."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, ParseException, PySparkException, PySparkRuntimeError
from pyspark.sql.types import StructType

from malstrom_py.errors import MalstromError, PlanError, SinkError, SourceError, SparkError
from malstrom_py.spark.failures import spark_errors

SYNTAX = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
selec 1
^^^
more
"""
RPC = """<_InactiveRpcError of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses"
\tdebug_error_string = "UNKNOWN:more"
>"""


@pytest.mark.parametrize("kind", [SourceError, SinkError])
def test_what_spark_refuses_is_told_in_one_line_with_what_was_to_be_done(kind: type[MalstromError]) -> None:
    said = r"^read the SQL: \[PARSE_SYNTAX_ERROR\] Syntax error at or near 'selec'\. \(line 1, pos 0\)$"
    with pytest.raises(kind, match=said), spark_errors("read the SQL", kind):
        raise ParseException(SYNTAX)


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o1.x"),
        AnalysisException("Job 3 cancelled because SparkContext was shut down"),
        PySparkRuntimeError(errorClass="NO_ACTIVE_SESSION", messageParameters={}),
        PySparkException(RPC),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_spark_that_is_gone_is_told_as_such_whatever_was_asked_for(error: Exception) -> None:
    with (
        pytest.raises(SparkError, match="stage rows: Spark has ended or the connection is lost: ") as caught,
        spark_errors("stage rows"),
    ):
        raise error
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error


def test_of_what_a_call_by_grpc_says_its_details_are_told() -> None:
    with pytest.raises(SparkError, match="lost: failed to connect to all addresses"), spark_errors("stage rows"):
        raise PySparkException(RPC)


def test_a_long_line_is_cut() -> None:
    with pytest.raises(SourceError) as caught, spark_errors("read", SourceError):
        raise AnalysisException("x" * 10_000)
    assert str(caught.value) == f"read: {'x' * 497}..."


def test_errors_of_our_own_and_of_others_pass() -> None:
    for error in (PlanError("wrong"), ValueError("other"), ConnectionError("of the user")):
        with pytest.raises(type(error), match=str(error)), spark_errors("nothing", SourceError):
            raise error


def test_what_pyspark_raises_for_wrong_arguments_passes() -> None:
    with pytest.raises(TypeError), spark_errors("nothing", SourceError):
        StructType().add()  # type: ignore[call-overload]
