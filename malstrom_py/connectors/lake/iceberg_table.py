"""An Iceberg table in its catalog: its columns, and commits.

Rules:
- A commit adds the files and notes the number of the snapshot in the table's properties, in one transaction. It
  requires that the table's main branch is where it was when the property was read, and pyiceberg's retries are off.
- A snapshot without files commits nothing: a change of properties alone requires nothing of the table, so a late one
  could set the number back.
- Files have the ids of the fields, so that they stay readable when columns are renamed.
- Bounds of floats are left out: Parquet's are without NaN.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.lake.iceberg_catalog import (
    CatalogAccess,
    data_place,
    is_to_repeat,
    opened,
    said,
    why_not_known,
)
from malstrom_py.connectors.lake.table import LakeFile, LakeTable
from malstrom_py.connectors.lake.types import Shape
from malstrom_py.connectors.lake.upserts import DELETES
from malstrom_py.errors import SinkError, lasting
from malstrom_py.sinks.staged import Place

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyiceberg.catalog import Catalog
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction

_NO_RETRIES: Final = {"commit.retry.num-retries": "0"}
_EPOCH: Final = date(1970, 1, 1)


class IcebergTable(LakeTable["Catalog", "Table"]):
    """The table ``name`` of ``catalog``."""

    kind, illegal, has_times, in_files = "Iceberg", ".", True, True

    def __init__(
        self,
        name: str,
        catalog: CatalogAccess,
        partition_by: str | Sequence[str] | None = None,
        new_columns: str = "error",
    ) -> None:
        super().__init__(name, partition_by, new_columns)
        self._catalog = catalog

    def describe(self, shape: Shape, metadata: pq.FileMetaData) -> dict[str, Any]:
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

    def _session(self) -> AbstractContextManager[Catalog]:
        return opened(self._catalog, SinkError)

    def _find(self, session: Catalog) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            return session.load_table(self.name)
        except NoSuchTableError:
            return None
        except OSError as error:
            raise SinkError(f"{self.where} cannot be read: {said(error, self._catalog)}") from None

    def _noted(self, table: Table, app: str) -> int | None:
        noted = table.properties.get(app)
        try:
            return None if noted is None else int(noted)
        except ValueError:
            raise SinkError(f"the property {app!r} of {self.where} is not a number: restore or remove it") from None

    def _shape(self, table: Table) -> Shape:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        refusal, names = why_not_known(table), []
        for field in table.spec().fields:
            if str(field.transform) != "identity":
                refusal = f"it is partitioned by {field.transform} of a column, and only columns themselves are known"
            names.append(str(table.schema().find_column_name(field.source_id)))
        if refusal is not None:
            raise self._refused(refusal)
        schema = _in_plain_layouts(schema_to_pyarrow(table.schema()))
        place, spec = self._place(table)[0], table.spec().spec_id
        return Shape(self.where, schema, tuple(names), place, in_files=self.in_files, spec=spec)

    def _create(self, session: Catalog, fields: Sequence[pa.Field]) -> None:
        import pyarrow as pa
        from pyiceberg.transforms import IdentityTransform

        session.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        with session.create_table_transaction(self.name, pa.schema(fields)) as transaction:
            if self.partition_by:
                with transaction.update_spec() as spec:
                    for name in self.partition_by:
                        spec.add_field(name, IdentityTransform(), name)

    def _add_columns(self, table: Table, fields: Sequence[pa.Field]) -> None:
        import pyarrow as pa

        table.metadata.properties.update(_NO_RETRIES)
        with table.update_schema() as update:
            update.union_by_name(pa.schema(fields))

    def _add(self, table: Table, app: str, number: int, files: Sequence[LakeFile]) -> None:
        merges = table.properties.get("commit.manifest-merge.enabled", "false").lower() == "true"
        with self._transaction(table, app, number) as transaction:
            update = transaction.update_snapshot(snapshot_properties={app: str(number)})
            with update.merge_append() if merges else update.fast_append() as append:
                for file in files:
                    append.append_data_file(self._data_file(table, file))

    def _merge(self, table: Table, app: str, number: int, rows: pa.Table, keys: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        noted, known, schema = {app: str(number)}, _among(rows, keys), self._shape_of(table).schema
        kept = rows.filter(pc.call_function("invert", [rows.column(DELETES)])).drop_columns([DELETES])
        added = [self._in_columns(kept, schema)]
        if len(keys) > 1:
            found = table.scan(row_filter=known).to_arrow().select(schema.names).cast(schema)
            added.append(_others(found, rows, keys))
        with self._transaction(table, app, number) as transaction:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Delete operation did not match any records")
                transaction.delete(known, snapshot_properties=noted)
            if any(map(len, added)):
                transaction.append(pa.concat_tables(added), snapshot_properties=noted)
            else:
                # If nothing was deleted either, only this requires that no other commit has come in between.
                with transaction.update_snapshot(snapshot_properties=noted).fast_append():
                    pass

    @contextmanager
    def _transaction(self, table: Table, app: str, number: int) -> Iterator[Transaction]:
        """Open a transaction that notes ``number``."""
        # Of this copy alone: what the table's own properties say is of no use for the check of the number.
        table.metadata.properties.update(_NO_RETRIES)
        with table.transaction() as transaction:
            transaction.set_properties({app: str(number)})
            yield transaction

    def _in_columns(self, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return staged ``rows`` in the columns of the table, which may have got and lost some in between."""
        import pyarrow as pa

        names = set(rows.schema.names)
        gone = sorted(names.difference(schema.names))
        if gone and not names.issuperset(schema.names):
            raise lasting(
                SinkError(
                    f"column {gone[0]!r} of staged rows is no longer in {self.where}, which has other columns: was it "
                    f"renamed? Give it its former name back until the job has committed the rows"
                )
            )
        arrays = [
            rows.column(field.name).cast(field.type) if field.name in names else pa.nulls(len(rows), field.type)
            for field in schema
        ]
        return pa.table(arrays, schema=schema)

    def _has(self, table: Table, path: str) -> bool:
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

    def _place(self, table: Table) -> tuple[Place, str]:
        found = data_place(table, self._catalog.store_options)
        if found is None:
            raise SinkError(
                f"{self.where} is neither in a local folder nor in S3, which sinks.Iceberg needs: see "
                f"docs/connectors/lake.md#limits"
            )
        return found

    def _why_lost(self, error: Exception) -> str | None:
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
