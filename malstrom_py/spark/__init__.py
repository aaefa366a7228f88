"""Spark at both ends of a job: sessions, types, and what Spark reads of a job. Imports pyspark only when it is used.

Rule: what is here works with classic and with Connect sessions, so nothing of it knows RDDs, the JVM or SparkContext.
"""

from __future__ import annotations

from typing import Any

from malstrom_py.spark.failures import spark_errors
from malstrom_py.spark.session import check_reads_jobs, spark_session

__all__ = ["register"]


def register(spark: Any) -> None:
    """Have ``spark`` read what jobs leave: ``spark.read.format("malstrom").load(folder)``.

    ``folder`` is that of `sinks.Files` or `sinks.Spark`, with the record ``_malstrom/<job>.json`` of the job's last
    commit there. Options: ``job``, needed if several have written there; ``step``, needed if several steps of it have;
    ``what``: ``"output"``, the rows in exactly the files that the record names, or ``"result"``, the counts of the run
    as one row for each step. Formats csv, json and parquet.

    Columns of partitions come last; they are whole numbers, dates or truth values if the names of all their folders
    are, else text. Unsigned numbers become the next larger type, times of day text. A schema that is given
    (``.schema(…)``) may leave out columns and ask for types that hold the same values.

    Snapshots are read by the same name: ``.option("snapshots", uri)``, or ``.load(uri)`` of a folder that has some.
    Options: ``job``; ``read``: ``"snapshots"``, one row each, ``"positions"`` of sources, or ``"state"``, the keys of
    ``step`` with their state; ``snapshot``, an id, else the newest; ``store.<option>`` for an object store.

    It goes with the session, classic or Connect. malstrom-py must be installed where Spark runs functions of Python.

    SparkError: the session has ended, or its Python is of another version, or has no malstrom-py. Reading raises
    Spark's AnalysisException or PythonException with a `SourceError` in it: no record, several jobs, a file that is
    missing or has changed.
    """
    with spark_session(spark) as session, spark_errors("register the data source 'malstrom'"):
        from malstrom_py.spark.data_source import JobOutputSource

        check_reads_jobs(session)
        session.dataSource.register(JobOutputSource)
