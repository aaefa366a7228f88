"""Spark support: sessions, types, and the data source that reads the output of jobs. Imports pyspark only when used.

Rule: this package works with classic and Connect sessions, so it uses neither RDDs nor the JVM nor SparkContext.
"""

from __future__ import annotations

from typing import Any

from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.grouped_state import apply_in_pandas_with_state
from malstrom_py.spark.processors import stateful
from malstrom_py.spark.session import check_data_source_installed, spark_session

__all__ = ["apply_in_pandas_with_state", "register", "stateful"]


def register(spark: Any) -> None:
    """Register the data source "malstrom" with a session: ``spark.read.format("malstrom").load(folder)``.

    It reads the output of a job. ``folder`` is the folder of `sinks.Files` or `sinks.Spark`, with the output record
    ``_malstrom/<job>.json`` of the job's last commit. Formats: csv, json and parquet. Options:

    - ``job``: required if several jobs have written to the folder; ``step``: required if several steps of the job have;
    - ``what``: ``"output"``, the rows of exactly the files that the record names, or ``"result"``, the counts of the
      run, one row per step.

    Partition columns come last. A partition column has integers, dates or booleans if all its folder names do, else
    strings. Unsigned integers get the next larger type, times of day become strings. An explicit schema
    (``.schema(…)``) may leave out columns and may ask for any type that holds the same values.

    ``spark.readStream.format("malstrom").schema(…).load(folder)`` reads the output as a stream: the files of each
    commit, once. A query whose output was replaced, by the job from its beginning, ends with a `SourceError`.

    It also reads snapshots: ``.option("snapshots", uri)``, or ``.load(uri)`` of a folder of snapshots. Options:

    - ``job``; ``snapshot``: an id, by default the newest; ``store.<option>``: options of an object store;
    - ``read``: ``"snapshots"``, one row each; ``"positions"`` of sources; or ``"state"``, the keys of ``step`` with
      their state.

    ``.option("what", "recording").load(uri)`` reads what ``capture_into`` has recorded: key, timestamp and value; also
    as a stream.

    The registration lasts as long as the session, classic or Connect. malstrom-py must be installed where Spark runs
    Python functions.

    SparkError: the session has ended, or its Python has another version or lacks malstrom-py. Reading raises Spark's
    AnalysisException or PythonException with a `SourceError` in it: no record, several jobs, a file that is missing or
    has changed.
    """
    with spark_session(spark) as session, spark_errors("register the data source 'malstrom'"):
        from malstrom_py.spark.data_source import JobOutputSource

        check_data_source_installed(session)
        session.dataSource.register(JobOutputSource)
