"""``Iceberg``: a transactional sink for Iceberg tables. `writer` stages files, `iceberg_table` commits them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from malstrom_py.connectors.lake.iceberg_catalog import checked_catalog, checked_table, require_pyiceberg
from malstrom_py.connectors.lake.iceberg_table import IcebergTable
from malstrom_py.connectors.lake.sink import LakeSink
from malstrom_py.sinks.base import Target


class Iceberg(LakeSink):
    """A sink that appends to an Iceberg table, exactly once per snapshot.

    Each worker writes Parquet files into a hidden folder ``_staging`` below the table's data. At the commit of a
    snapshot, one transaction of the catalog adds all files and notes the snapshot's number in the table's property
    ``malstrom.<job>.<step>``. A commit that is repeated, in any process, or that comes after that of a later snapshot
    changes nothing.

    ``table``: its id, ``"namespace.table"``. ``catalog``: the name of a catalog in pyiceberg's configuration, or its
    properties (str -> str). The table's folder is local (a path or ``file://…``) and shared by all workers, or in S3;
    then ``store_options`` are those of `sinks.Files` (needs the extra ``objects``), and are given to pyiceberg too.
    ``partition_by``: columns (str, int, bool, date or None) of a new table; a table that exists must have the same, if
    any are given. ``new_columns="add"`` adds columns that the table lacks, ``"error"`` refuses rows with such columns.
    A file of ``file_bytes_max`` bytes or more is finished, and the next one begins.

    Rows become columns as in `sinks.Files`. A table (and its namespace) that does not exist is created from the first
    rows. Values are cast to the table's types if they fit; a type of another kind is a `SinkError` before the snapshot
    is durable, and so is a required column without a value. Columns may come in any order; a missing one is None. A
    column that holds only None and that the table lacks is left out.

    ``mode="upsert"``, ``keys`` and ``delete_field``: see `Delta`. pyiceberg rewrites the files that have such keys.

    PlanError: an argument is wrong, or pyiceberg is not installed. SinkError: the catalog does not answer, the table is
    partitioned by transforms or of format version 3, the rows do not fit, or the folder cannot be written.

    >>> import tempfile
    >>> import malstrom_py as mp
    >>> from malstrom_py import sinks, sources
    >>> folder = tempfile.mkdtemp()
    >>> catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    >>> job = mp.Job("docs")
    >>> delays = job.source("delays", sources.Memory([{"carrier": "UA", "delay": 2}]))
    >>> delays.sink("out", sinks.Iceberg("flights.delays", catalog=catalog))
    >>> _ = mp.run(job)
    >>> source = sources.Iceberg("flights.delays", catalog=catalog)
    >>> mp.collect(mp.Job("read").source("delays", source))
    [{'carrier': 'UA', 'delay': 2}]
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str | Mapping[str, str] = "default",
        mode: Literal["append", "upsert"] = "append",
        keys: str | Iterable[str] = (),
        delete_field: str | None = None,
        partition_by: str | Sequence[str] | None = None,
        new_columns: Literal["add", "error"] = "error",
        file_bytes_max: int = 256 << 20,
        store_options: Mapping[str, str] | None = None,
    ) -> None:
        require_pyiceberg("sinks.Iceberg")
        access = checked_catalog(catalog, store_options, "sinks.Iceberg")
        found = IcebergTable(checked_table(table, "sinks.Iceberg"), access, partition_by, new_columns)
        super().__init__(found, mode=mode, keys=keys, delete_field=delete_field, file_bytes_max=file_bytes_max)
        self.target = Target(f"Iceberg {found.name}", replaces=False)
