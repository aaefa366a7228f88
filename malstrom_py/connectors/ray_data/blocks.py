"""The pinned blocks of a Ray dataset: in Ray's object store, or staged in a folder as Arrow streams.

Rule: a block is read only while its rows are those that were pinned: their digest is compared each time. Ray may
compute a lost block again, and a function that is not deterministic then returns other rows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import xxhash

from malstrom_py.clock import SystemClock
from malstrom_py.data.schema import ColumnKind, contains, kind_of
from malstrom_py.errors import SourceError
from malstrom_py.errors.text import describe_error, text_of
from malstrom_py.sinks.output_record import write_durably
from malstrom_py.sources.files.options import merge_types, pack_schema, unpack_schema, without_nanoseconds

if TYPE_CHECKING:
    import pyarrow as pa

FETCH_S: Final = 300.0
"""How long a block may take to arrive from another node, or to be computed again after the loss of one."""

NAMESPACE: Final = "malstrom-rows"
"""The Ray namespace of the actors that pass blocks on to workers."""

_VALUES: Final = "data"
"""The field of the storage of a tensor of any shape that holds its values."""

_TASK_CPUS: Final = 0.5
_WAIT_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one partition: how many, and their digest."""

    rows: int
    digest: str


class Blocks(Protocol):
    """A place of pinned blocks, known by their numbers."""

    def fetch(self, number: int, block: Block) -> Callable[[], pa.Table | None]:
        """Begin to fetch a block. The function returns its rows, or None while they are in flight; it
        hardly blocks, and raises `SourceError` if they are lost or are no longer those of ``block``.
        """
        ...


def name_of(number: int) -> str:
    """Return the name of a block: of its partition, and of its file.

    >>> name_of(7)
    'block-00007'
    """
    return f"block-{number:05d}"


def serialized(table: pa.Table) -> pa.Buffer:
    """Return ``table`` as an Arrow stream."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    _write(table, sink)
    return sink.getvalue()


def digest_of_rows(table: pa.Table) -> str:
    """Return the digest of `serialized` rows, without a copy of them in memory.

    >>> import pyarrow as pa
    >>> table = pa.table({"n": [1, 2]})
    >>> digest_of_rows(table) == digest_of(serialized(table))
    True
    """
    import pyarrow as pa

    sink = _Digest()
    with pa.PythonFile(sink, "w") as file:
        _write(table, file)
    return sink.digest.hexdigest()


class _Digest:
    """A file that takes the digest of what is written to it, and keeps nothing."""

    closed = False

    def __init__(self) -> None:
        self.digest = xxhash.xxh3_128()

    def write(self, content: Any) -> None:
        self.digest.update(content)

    def flush(self) -> None:
        """Do nothing: nothing is kept."""

    def close(self) -> None:
        """Do nothing: nothing is kept."""


def _write(table: pa.Table, sink: Any) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def digest_of(content: Any) -> str:
    """Return the digest of bytes.

    >>> digest_of(b"rows")
    'a6b027b67ea9f1eb79b98e5d40656a87'
    """
    return xxhash.xxh3_128_hexdigest(content)


def plain_type(found: pa.DataType) -> pa.DataType | None:
    """Return the type in which a column of type ``found`` is read; None if it cannot be read.

    Tensors of one dimension are lists.

    >>> import pyarrow as pa
    >>> plain_type(pa.dictionary(pa.int8(), pa.string())), plain_type(pa.fixed_shape_tensor(pa.int8(), [2, 2]))
    (DataType(string), None)
    """
    import pyarrow as pa

    if isinstance(found, pa.BaseExtensionType):
        shape: tuple[int | None, ...] = getattr(found, "shape", ())
        if len(shape) != 1:
            return None
        # Rows of any length are structs of values and shape.
        found = found.storage_type if shape[0] is not None else found.storage_type.field(_VALUES).type
    return None if contains(found, _is_unreadable) else without_nanoseconds(found)


def _is_unreadable(found: pa.DataType) -> bool:
    """Return whether values of type ``found`` have no plain form: Arrow's cast of views of lists is not valid."""
    import pyarrow as pa

    is_view = pa.types.is_list_view(found) or pa.types.is_large_list_view(found)
    return is_view or kind_of(found) is ColumnKind.OTHER


def plain_table(table: pa.Table) -> pa.Table:
    """Return ``table`` in the types of `plain_type`.

    Raises:
        SourceError: a column has a type that cannot be read, or values that the type for it cannot hold.
    """
    import pyarrow as pa

    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        wanted = plain_type(field.type)
        if wanted is None:
            raise SourceError(
                f"column {field.name!r} of the dataset has the type {field.type}, which cannot be read: convert it "
                f"with Dataset.map_batches, for instance into lists or bytes, or leave it out with Dataset.drop_columns"
            )
        try:
            columns.append(_stored(column, field.type).cast(wanted))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise SourceError(
                f"column {field.name!r} of the dataset has values of {field.type} that do not fit {wanted} "
                f"({describe_error(error)}): convert it with Dataset.map_batches"
            ) from error
    return pa.table(columns, names=table.schema.names)


def _stored(column: pa.ChunkedArray, found: pa.DataType) -> pa.ChunkedArray:
    """Return ``column`` without its extension type, if ``found`` is one: of tensors, their values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(found, pa.BaseExtensionType):
        return column
    stored = pa.chunked_array([chunk.storage for chunk in column.chunks], found.storage_type)
    # Other than `StructArray.field`, it is null where the struct is.
    if pa.types.is_struct(found.storage_type):
        return pc.call_function("struct_field", [stored], pc.StructFieldOptions([_VALUES]))
    return stored


def joined_schema(schemas: Sequence[bytes]) -> bytes:
    """Return the one schema of blocks with ``schemas``; a column that is empty in some takes its type from others.

    Raises:
        SourceError: blocks have different columns, or types.
    """
    import pyarrow as pa

    found = [unpack_schema(packed) for packed in dict.fromkeys(schemas)]
    for schema in found:
        repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if repeated:
            raise SourceError(
                f"a block of the dataset has more than one column named {', '.join(map(repr, repeated))}: give "
                f"each its own name"
            )
    joined = merge_types(iter(found))
    if joined is None:
        if found:
            raise SourceError("the rows of the dataset have no columns, so there is nothing to read")
        return pack_schema(pa.schema([]))
    types = dict(zip(joined.names, joined.types, strict=True))
    for schema in found:
        of_block = {
            field.name: types.get(field.name) if pa.types.is_null(field.type) else field.type for field in schema
        }
        if of_block != types:
            raise SourceError(
                f"blocks of the dataset differ: one has the columns {_shown(joined)}, and another {_shown(schema)}. "
                f"Give all rows the same columns and types, by Dataset.map_batches"
            )
    return pack_schema(joined)


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def as_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the plain form of ``table`` with the columns of ``schema``, in its order."""
    return plain_table(table).select(schema.names).cast(schema)


def inspected(block: pa.Table, path: str | None) -> tuple[Block, bytes] | str:
    """Return the rows and the digest of ``block`` with its plain schema, packed, or the reason why it cannot be read.
    Write it to ``path``, if given. Runs in a task of Ray.
    """
    try:
        schema = plain_table(block).schema
    except SourceError as error:
        return str(error)
    if path is None:
        return Block(block.num_rows, digest_of_rows(block)), pack_schema(schema)
    content = serialized(plain_table(block))
    try:
        write_durably(Path(path), memoryview(content))
    except OSError as error:
        return f"{path} cannot be written ({error.strerror}): give staging= a folder that all nodes share"
    return Block(block.num_rows, digest_of(content)), pack_schema(schema)


def inspect_all(refs: Sequence[Any], folder: Path | None) -> list[tuple[Block, bytes]]:
    """Run `inspected` for all blocks, where they are; write them to ``folder``, if given.

    Raises:
        SourceError: a block cannot be computed, read or written, or no task ends within `FETCH_S`.
    """
    import ray

    paths = [None if folder is None else str(folder / name_of(number)) for number in range(len(refs))]
    task = ray.remote(num_cpus=_TASK_CPUS)(inspected)
    tasks = [task.remote(ref, path) for ref, path in zip(refs, paths, strict=True)]
    running = tasks
    while running:
        ended, running = ray.wait(running, num_returns=len(running), timeout=FETCH_S)
        if not ended:
            for left in running:
                ray.cancel(left)
            raise SourceError(
                f"Ray has ended none of the last {len(running)} tasks that pin the blocks of the dataset within "
                f"{FETCH_S:g} s: each needs {_TASK_CPUS:g} of a CPU, which other tasks and actors may hold (see `ray "
                f"status`); free some, or add a node"
            )
    found = ray.get(tasks)
    described = [one for one in found if not isinstance(one, str)]
    for reason in found:
        if isinstance(reason, str):
            raise SourceError(reason)
    return described


class StagedBlocks:
    """Blocks in files of ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fetch(self, number: int, block: Block) -> Callable[[], pa.Table | None]:
        import pyarrow as pa

        def read() -> pa.Table:
            path = self._folder / name_of(number)
            try:
                with pa.memory_map(str(path)) as file:
                    content = file.read_buffer()
            except OSError as error:
                raise lost(f"{path} cannot be read ({error.strerror or error})") from error
            if digest_of(content) != block.digest:
                raise lost(f"{path} is no longer the file that was pinned: it was changed or cut off")
            return pa.ipc.open_stream(content).read_all()

        return read

    def check(self, count: int) -> None:
        """Raise `SourceError` unless the files of ``count`` blocks exist."""
        missing = [name_of(number) for number in range(count) if not (self._folder / name_of(number)).is_file()]
        if missing:
            raise SourceError(
                f"{len(missing)} of {count} blocks are not in {self._folder}: give staging= a folder that this program "
                f"and all nodes of the Ray cluster share"
            )


class _Holder:
    """An actor with references of blocks, from which workers get them."""

    def __init__(self, refs: list[Any]) -> None:
        self._refs = refs

    def block(self, number: int) -> list[Any]:
        return [self._refs[number]]


class StoredBlocks:
    """Blocks in the object store of Ray, as long as this object and the program that made it exist.

    A copy in another process has no references, which cannot be pickled outside of Ray: it asks an actor, which starts
    when the first copy is made, on the node of this program: it is not lost before this program is.
    """

    def __init__(self, refs: Sequence[Any]) -> None:
        self._refs = list(refs)
        self._name = f"rows-{secrets.token_hex(8)}"
        self._ray = _this_ray()
        self._holder: Any = None

    def __getstate__(self) -> dict[str, Any]:
        if self._refs and self._holder is None:
            import ray
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            here: Any = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            actor: Any = ray.remote(num_cpus=0, scheduling_strategy=here)(_Holder)
            self._holder = actor.options(name=self._name, namespace=NAMESPACE).remote(self._refs)
        return {"_refs": [], "_name": self._name, "_ray": "", "_holder": None}

    @property
    def is_alive(self) -> bool:
        """Whether this program is connected to the Ray that has the blocks."""
        import ray

        return ray.is_initialized() and self._ray == _this_ray()

    def fetch(self, number: int, block: Block) -> Callable[[], pa.Table | None]:
        import ray

        if self._refs:
            return _Fetch(self._refs[number].future(), number, block)
        try:
            self._holder = self._holder or ray.get_actor(self._name, namespace=NAMESPACE)
        except ValueError as error:
            raise lost("the program that started the job has ended, and the blocks with it") from error
        return _Fetch(self._holder.block.remote(number).future(), number, block)

    def release(self) -> None:
        """Drop the blocks."""
        import ray

        if self._holder is not None and self.is_alive:
            ray.kill(self._holder)
        self._refs, self._holder = [], None


def _this_ray() -> str:
    """Return what differs between two connections of this program to Ray.

    A worker's number is made from the job's, and the first job of each new cluster has the same; a node's is random.
    """
    import ray

    context = ray.get_runtime_context()
    return f"{context.get_worker_id()} on {context.get_node_id()}"


class _Fetch:
    """Returns a block of the object store when it has arrived."""

    def __init__(self, future: Future[Any], number: int, block: Block) -> None:
        self._future = future
        self._number = number
        self._block = block
        self._clock = SystemClock()
        self._until_s = self._clock.monotonic_s() + FETCH_S

    def __call__(self) -> pa.Table | None:
        from ray.exceptions import RayError

        wait([self._future], _WAIT_S)  # a block of this node comes within it, and no poll has to be repeated
        while self._future.done():
            try:
                found = self._future.result()
            except RayError as error:
                reason = text_of(error).partition("\n")[0]
                raise lost(f"Ray cannot return {name_of(self._number)} ({type(error).__name__}: {reason})") from error
            if not isinstance(found, list):
                return self._checked(found)
            self._future = found[0].future()
        if self._clock.monotonic_s() > self._until_s:
            raise lost(f"Ray did not return {name_of(self._number)} within {FETCH_S:g} s")
        return None

    def _checked(self, table: pa.Table) -> pa.Table:
        if table.num_rows != self._block.rows or digest_of_rows(table) != self._block.digest:
            raise lost(f"Ray has computed {name_of(self._number)} again after it was lost, and it has other rows now")
        return table


def lost(reason: str) -> SourceError:
    """Return the error for rows that no longer exist."""
    return SourceError(
        f"the rows of the dataset are lost: {reason}. Start the job from the beginning, under another name if it has "
        f"snapshots; with staging=, a folder that all nodes share, rows outlive nodes, the cluster and this program"
    )
