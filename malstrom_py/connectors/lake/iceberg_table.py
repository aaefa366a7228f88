"""An Iceberg table in its catalog: its columns, and commits.

Rules:
- A commit adds the files and notes the number of the snapshot in the table's properties, in one transaction. It
  requires that the table's main branch is where it was when the property was read. pyiceberg would repeat a commit
  that loses the race without reading the property again, so its retries are off, and a commit is repeated from here.
- A snapshot without files commits nothing: a change of properties alone requires nothing of the table, so a late one
  could set the number back.
- Files have the ids of the fields, so that they stay readable when columns are renamed.
- Bounds of floats are left out: Parquet's are without NaN.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.lake.files import LakeFile
from malstrom_py.connectors.lake.iceberg_catalog import (
    CatalogAccess,
    data_place,
    is_to_repeat,
    opened,
    said,
    why_not_known,
)
from malstrom_py.connectors.lake.repeating import repeat
from malstrom_py.connectors.lake.types import Seen, Shape, check_new_names, new_columns, table_fields
from malstrom_py.connectors.lake.upserts import DELETES
from malstrom_py.errors import SinkError, lasting
from malstrom_py.sinks.files.partitions import check_type
from malstrom_py.sinks.staged import Place

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction

_ILLEGAL: Final = "."
_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
_EPOCH: Final = date(1970, 1, 1)


class IcebergTable:
    """The table ``name`` of ``catalog``. ``partition_by``: of a new table, and of one that exists, if given."""

    def __init__(
        self,
        name: str,
        catalog: CatalogAccess,
        *,
        partition_by: Sequence[str] = (),
        adds_columns: bool = False,
    ) -> None:
        self._name = name
        self._catalog = catalog
        self._partition_by = tuple(partition_by)
        self._adds_columns = adds_columns
        self._where = f"the Iceberg table {name}"

    def look(self, app: str) -> Seen | None:
        """See `LakeTable.look`."""
        with opened(self._catalog, SinkError) as catalog:
            table = self._find(catalog)
            return None if table is None else Seen(self._shape_of(table), _noted(table, app))

    def ensure(self, schema: pa.Schema) -> Shape:
        """See `LakeTable.ensure`."""
        with opened(self._catalog, SinkError) as catalog:

            def attempt() -> Shape | None:
                table = self._find(catalog)
                if table is None:
                    self._create(catalog, schema)
                    return None
                shape = self._shape_of(table)
                added = new_columns(schema, shape.schema.names)
                if not added:
                    return shape
                self._add_columns(table, shape, added)
                return None

            return repeat(attempt, self._lost, self._where)

    def describe(self, shape: Shape, metadata: pq.FileMetaData) -> dict[str, Any]:
        """See `LakeTable.describe`."""
        from pyiceberg.io.pyarrow import (
            compute_statistics_plan,
            data_file_statistics_from_parquet_metadata,
            parquet_path_to_id_mapping,
            pyarrow_to_schema,
        )

        schema = pyarrow_to_schema(shape.schema)
        found: dict[str, Any] = data_file_statistics_from_parquet_metadata(
            metadata, compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
        ).to_serialized_dict()
        floats = _floats_of(schema)
        for bounds in ("lower_bounds", "upper_bounds"):
            found[bounds] = {field: bound for field, bound in found[bounds].items() if field not in floats}
        return found

    def commit(self, app: str, number: int, files: Sequence[LakeFile]) -> bool:
        """See `LakeTable.commit`."""

        def add(table: Table, transaction: Transaction, noted: dict[str, str]) -> None:
            merges = table.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
            update = transaction.update_snapshot(snapshot_properties=noted)
            with update.merge_append() if merges else update.fast_append() as append:
                for file in files:
                    append.append_data_file(self._data_file(table, file))

        return self._change(app, number, add)

    def merge(self, app: str, number: int, rows: pa.Table, keys: Sequence[str]) -> bool:
        """See `MergedTable.merge`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        known = _among(rows, keys)
        kept = rows.filter(pc.call_function("invert", [rows.column(DELETES)])).drop_columns([DELETES])

        def merge(table: Table, transaction: Transaction, noted: dict[str, str]) -> None:
            schema = self._shape_of(table).schema
            added = [self._in_columns(kept, schema)]
            if len(keys) > 1:
                found = table.scan(row_filter=known).to_arrow().select(schema.names).cast(schema)
                added.append(_others(found, rows, keys))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Delete operation did not match any records")
                transaction.delete(known, snapshot_properties=noted)
            if any(map(len, added)):
                transaction.append(pa.concat_tables(added), snapshot_properties=noted)
            else:
                # If nothing was deleted either, only this requires that no other commit has come in between.
                with transaction.update_snapshot(snapshot_properties=noted).fast_append():
                    pass

        return self._change(app, number, merge)

    def _in_columns(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return staged ``rows`` in the columns of the table, which may have got and lost some in between."""
        import pyarrow as pa

        names = set(rows.schema.names)
        gone = sorted(names.difference(schema.names))
        if gone and not names.issuperset(schema.names):
            raise lasting(
                SinkError(
                    f"column {gone[0]!r} of staged rows is no longer in {self._where}, which has other columns: was it "
                    f"renamed? Give it its former name back until the job has committed the rows"
                )
            )
        arrays = [
            rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(len(rows), field.type)
            for field in schema
        ]
        return pa.table(arrays, schema=schema)

    def _change(self, app: str, number: int, change: Callable[[Table, Transaction, dict[str, str]], None]) -> bool:
        """Change the table and note ``number`` in one transaction, unless this or a larger number is noted."""
        with opened(self._catalog, SinkError) as catalog:

            def attempt() -> bool:
                table = self._find(catalog)
                if table is None:
                    raise SinkError(f"{self._where} is not there, but rows were written for it: restore it")
                known = _noted(table, app)
                if known is not None and known >= number:
                    return known == number
                # Of this copy alone: what the table's own properties say is of no use for the check of the number.
                table.metadata.properties.update(_NO_RETRIES)
                noted = {app: str(number)}
                with table.transaction() as transaction:
                    transaction.set_properties(noted)
                    change(table, transaction, noted)
                return True

            return repeat(attempt, self._lost, self._where)

    def contains(self, path: str) -> bool:
        """See `LakeTable.contains`."""
        with opened(self._catalog, SinkError) as catalog:
            table = self._find(catalog)
            if table is None:
                return False
            found = f"{self._place(table)[1]}/{path}"
            return any(task.file.file_path == found for task in table.scan().plan_files())

    def _data_file(self, table: Table, file: LakeFile) -> Any:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        spec = table.specs()[file.spec]
        types = [str(table.schema().find_type(field.source_id)) for field in spec.fields]
        values = [_plain(text, kind) for text, kind in zip(file.values, types, strict=True)]
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._place(table)[1]}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=file.spec,
            equality_ids=None,
            key_metadata=None,
            **file.stats,
        )

    def _find(self, catalog: Catalog) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return catalog.load_table(self._name)
        except NoSuchTableError:
            return None
        except OSError as error:
            raise SinkError(f"{self._where} cannot be read: {said(error, self._catalog)}") from None

    def _place(self, table: Table) -> tuple[Place, str]:
        found = data_place(table, self._catalog.store_options)
        if found is None:
            raise SinkError(
                f"{self._where} is neither in a local folder nor in S3, which sinks.Iceberg needs: see "
                f"docs/connectors/lake.md#limits"
            )
        return found

    def _shape_of(self, table: Table) -> Shape:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        refusal, names = why_not_known(table), []
        for field in table.spec().fields:
            if str(field.transform) != "identity":
                refusal = f"it is partitioned by {field.transform} of a column, and only columns themselves are known"
            names.append(table.schema().find_column_name(field.source_id))
        if refusal is not None:
            raise SinkError(f"{self._where} cannot be written by sinks.Iceberg: {refusal}. Write to another table")
        partition_by = tuple(str(name) for name in names)
        if self._partition_by and partition_by != self._partition_by:
            raise SinkError(
                f"{self._where} is partitioned by {list(partition_by)}, and partition_by is {list(self._partition_by)}"
            )
        schema = _in_plain_layouts(schema_to_pyarrow(table.schema()))
        place, spec = self._place(table)[0], table.spec().spec_id
        return Shape(self._where, schema, partition_by, place, in_files=True, spec=spec)

    def _create(self, catalog: Catalog, schema: pa.Schema) -> None:
        import pyarrow as pa
        from pyiceberg.transforms import IdentityTransform

        fields = self._fields(new_columns(schema, ()), ())
        missing = [name for name in self._partition_by if name not in {field.name for field in fields}]
        if missing:
            raise SinkError(
                f"no value of partition column {missing[0]!r} is among the first rows, so {self._where} cannot be "
                f"created: create it before the job starts, or give all rows the column"
            )
        for field in fields:
            if field.name in self._partition_by:
                check_type(field.name, field.type)
        if not fields:
            raise SinkError(f"{self._where} cannot be created: no column has a value yet")
        catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
        with catalog.create_table_transaction(self._name, pa.schema(fields)) as transaction:
            if self._partition_by:
                with transaction.update_spec() as spec:
                    for name in self._partition_by:
                        spec.add_field(name, IdentityTransform(), name)

    def _add_columns(self, table: Table, shape: Shape, added: Sequence[pa.Field]) -> None:
        import pyarrow as pa

        names = ", ".join(repr(field.name) for field in added)
        if not self._adds_columns:
            raise SinkError(
                f"{self._where} has no column {names}: drop it in a map step, or give sinks.Iceberg new_columns='add'"
            )
        fields = self._fields(added, shape.schema.names)
        table.metadata.properties.update(_NO_RETRIES)
        with table.update_schema() as update:
            update.union_by_name(pa.schema(fields))

    def _fields(self, fields: Sequence[pa.Field], known: Sequence[str]) -> list[pa.Field]:
        check_new_names(fields, known, self._where, _ILLEGAL)
        return table_fields(fields, "Iceberg", has_times=True)

    def _lost(self, error: Exception) -> str | None:
        return said(error, self._catalog) if is_to_repeat(error) else None


def _among(rows: pa.Table, keys: Sequence[str]) -> BooleanExpression:
    """Return a filter of all rows with the keys of ``rows``, and of `_others`.

    One that is exact for several keys would have a term for each row, and pyiceberg takes milliseconds for each.
    """
    from pyiceberg.expressions import AlwaysTrue, And
    from pyiceberg.table.upsert_util import create_match_filter

    found: BooleanExpression = AlwaysTrue()
    for key in keys:
        found = And(found, create_match_filter(rows, [key]))
    return found


def _others(found: pa.Table, rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the rows that were ``found`` and have not all the keys of one of ``rows``."""
    import pyarrow as pa

    numbers = pa.table([*(found.column(key) for key in keys), pa.array(range(len(found)), pa.int64())], [*keys, ""])
    wanted = rows.select(list(keys)).cast(numbers.select(list(keys)).schema)
    return found.take(numbers.join(wanted, list(keys), join_type="left anti").column(""))


def _in_plain_layouts(schema: pa.Schema) -> pa.Schema:
    """Return ``schema`` without large texts and lists, which are another type to some readers. Ids of fields stay."""
    import pyarrow as pa

    def plain(field: pa.Field) -> pa.Field:
        kind = field.type
        if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
            return field.with_type(pa.string() if pa.types.is_large_string(kind) else pa.binary())
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return field.with_type(pa.list_(plain(kind.value_field)))
        if pa.types.is_map(kind):
            return field.with_type(pa.map_(plain(kind.key_field), plain(kind.item_field)))
        return field.with_type(pa.struct(map(plain, kind))) if pa.types.is_struct(kind) else field

    return pa.schema(map(plain, schema))


def _noted(table: Table, app: str) -> int | None:
    noted = table.properties.get(app)
    try:
        return None if noted is None else int(noted)
    except ValueError:
        raise SinkError(f"the property {app!r} of the Iceberg table is not a number: restore or remove it") from None


def _floats_of(schema: Schema) -> set[int]:
    """Return the ids of all fields of floats, also of nested ones."""
    from pyiceberg.types import DoubleType, FloatType

    return {number for number in schema.field_ids if isinstance(schema.find_type(number), FloatType | DoubleType)}


def _plain(text: str | None, kind: str) -> Any:
    """Return the value of a partition column as Iceberg's metadata holds it."""
    if text is None or kind == "string":
        return text
    if kind == "boolean":
        return text == "true"
    return (date.fromisoformat(text) - _EPOCH).days if kind == "date" else int(text)
