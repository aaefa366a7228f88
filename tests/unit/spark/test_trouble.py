"""What Spark raises is told in its own words, short, and as what it means for the job."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, ParseException

from malstrom_py.errors import MalstromError, PlanError, SinkError, SourceError, SparkError
from malstrom_py.spark.trouble import spark_trouble

LONG = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'.
(line 1, pos 0)

== SQL ==
selec 1
^^^
more
"""


@pytest.mark.parametrize("kind", [SourceError, SinkError])
def test_what_spark_refuses_is_told_with_what_was_to_be_done(kind: type[MalstromError]) -> None:
    said = r"^the SQL cannot be read: \[PARSE.* near 'selec'\. \(line 1, pos 0\) selec 1$"
    with pytest.raises(kind, match=said), spark_trouble("the SQL cannot be read", kind):
        raise ParseException(LONG)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("Answer from Java side is empty"),
        Py4JError("An error occurred while calling o1.x"),
        AnalysisException("Job 3 cancelled because SparkContext was shut down"),
        EOFError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_spark_that_is_gone_is_told_as_such(error: Exception) -> None:
    said = "rows cannot be staged: Spark does not answer any more"
    with pytest.raises(SparkError, match=said), spark_trouble("rows cannot be staged", SourceError):
        raise error


def test_errors_of_our_own_and_of_others_pass() -> None:
    for error in (PlanError("wrong"), ValueError("other")):
        with pytest.raises(type(error), match=str(error)), spark_trouble("nothing", SourceError):
            raise error
