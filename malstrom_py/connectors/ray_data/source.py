"""``RayDataset``: a source over a dataset of Ray Data. Each block is a partition; a position is a row of it."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from malstrom_py.connectors.ray_data.blocks import (
    Block,
    Blocks,
    StagedBlocks,
    StoredBlocks,
    as_schema,
    inspect_all,
    joined_schema,
    lost,
    name_of,
)
from malstrom_py.errors import PlanError, SourceError, pip_install
from malstrom_py.errors.text import text_of
from malstrom_py.local_files import local_path
from malstrom_py.sources.base import BasePart, Part, SourcePart
from malstrom_py.sources.files.options import unpack_schema
from malstrom_py.sources.pinned.folder import PinFolder, staging_folder
from malstrom_py.sources.pinned.source import Pinned, packed_bytes, packed_text
from malstrom_py.validation import checked_whole

if TYPE_CHECKING:
    import pyarrow as pa
    import ray.data

_SOURCE: Final = "RayDataset"
_EXCEPTION: Final = re.compile(r"[\w.]+(Error|Exception): ")


@dataclass(frozen=True, slots=True)
class Pin:
    """What a job reads: blocks of one ``schema``, packed; ``staged``: the folder of their files, if any."""

    id: str
    schema: bytes
    blocks: tuple[Block, ...]
    staged: str | None

    def record(self) -> dict[str, Any]:
        """Return the pin as plain JSON."""
        return {
            "id": self.id,
            "schema": packed_text(self.schema),
            "blocks": [asdict(block) for block in self.blocks],
            "staged": self.staged,
        }


class RayDataset(Pinned[dict[str, Any], Pin]):
    """Reads the rows of a ``ray.data.Dataset``, which is computed and pinned when the job starts.

    A dataset that is computed again may have other rows, or another order. So it is computed once, in the program that
    starts the job, and its blocks are kept until the job has ended. Each block is a partition: a split that moves
    when a job is rescaled, with a row as its position. ``parts``: the number of blocks to make of it, by default those
    that it has. Rows keep their order within a block; partitions have no order.

    **Without** ``staging`` the blocks stay in Ray's object store, and workers read them there, without a copy on their
    own node. They outlive workers and the coordinator of the job. Those that a lost node had, Ray computes again; if
    they are not the same then, or cannot be computed, the job fails with a `SourceError`. Blocks end with the program
    that started the job: a job with snapshots resumes in the same program, from the same source object, and in another
    program it fails with a `SourceError`. A detached job is a PlanError.

    ``staging``: a folder that this program, all nodes of Ray and all workers share. The blocks are written to a folder
    of this start in it, ``<staging>/<job>/pin-…/``, in about the size that they have in memory. So a job with
    snapshots reads the same rows when it is resumed by another program, on another cluster, and the dataset is not
    computed again. The folder is removed when the job has ended, unless ``keep_staging=True``; it stays when the job
    ends unfinished. The next start from the beginning removes the folder of a killed program.

    In one process (`mp.run`) it works alike, with the Ray that the program has started.

    Values: dicts, column -> value, or columns for steps that take these. Times become microseconds, dictionaries their
    values, tensors of one dimension lists.

    Raises:
        PlanError: this is not a dataset, an argument is wrong, or Ray does not run in this program.
        SourceError: the dataset cannot be computed, its blocks differ in their columns, a column has another type (a
            tensor of more dimensions, a Python object), rows cannot be staged, or they are lost.

    >>> RayDataset([1, 2, 3])
    Traceback (most recent call last):
    malstrom_py.errors.PlanError: sources.RayDataset takes a ray.data.Dataset, got list: see ray.data.from_items
    """

    parts_open_max = 4

    def __init__(
        self,
        ds: ray.data.Dataset,
        *,
        parts: int | None = None,
        staging: str | os.PathLike[str] | None = None,
        keep_staging: bool = False,
    ) -> None:
        if not is_dataset(ds):
            raise PlanError(
                f"sources.RayDataset takes a ray.data.Dataset, got {type(ds).__name__}: see ray.data.from_items"
            )
        if parts is not None:
            checked_whole(parts, "sources.RayDataset: parts")
        if type(keep_staging) is not bool or (keep_staging and staging is None):
            raise PlanError("sources.RayDataset: keep_staging is True or False, and True needs staging=")
        self._ds: Any = ds
        self._parts = parts
        self._staging = None if staging is None else local_path(staging, "sources.RayDataset(staging=)")
        super().__init__(keeps_staging=keep_staging)
        self.ends_with_program = staging is None
        self._kept: Pin | None = None
        self._blocks: Blocks | None = None

    def __repr__(self) -> str:
        return f"RayDataset({'' if self._staging is None else f'staging={str(self._staging)!r}'})"

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of a copy for another process: the pin, without the dataset."""
        return {**super().__getstate__(), "_ds": None, "_kept": None}

    def _described(self) -> str:
        return _SOURCE

    def _pin_of(self, record: Mapping[str, Any]) -> Pin:
        blocks = tuple(Block(**block) for block in record["blocks"])
        return Pin(record["id"], packed_bytes(record["schema"]), blocks, record["staged"])

    def _find(self, job: str) -> Pin:
        if self._ds is None:  # a copy that was never pinned
            return self._pin.of(self)
        self._drop()
        pin, self._blocks, self._folder = pinned(
            self._ds, job, self._parts, self._staging, keep_staging=self._keeps_staging
        )
        return pin

    def _hold(self, pin: Pin, *, is_resumed: bool) -> None:
        if pin.staged is None:
            if pin not in (self._pin.known, self._kept) or (self._ds is not None and not _is_alive(self._blocks)):
                raise lost("they were in the object store of a Ray that an earlier program was connected to")
            return
        super()._hold(pin, is_resumed=is_resumed)
        self._blocks = StagedBlocks(PinFolder(Path(pin.staged)).rows)

    def _check(self, pin: Pin) -> None:
        StagedBlocks(PinFolder(Path(pin.staged or "")).rows).check(len(pin.blocks))

    def _release(self, *, keep: bool) -> None:
        self._kept = self._pin.known if keep else None
        if self._ds is not None and not keep:
            self._drop()
        super()._release(keep=keep)

    def _drop(self) -> None:
        blocks, self._blocks = self._blocks, None
        if isinstance(blocks, StoredBlocks):
            blocks.release()

    def list_parts(self) -> Sequence[Part]:
        return [Part(name_of(number)) for number, block in enumerate(self._pin.of(self).blocks) if block.rows]

    def build_part(self, part: Part, state: Any) -> SourcePart[dict[str, Any]]:
        pin, blocks = self._pin.of(self), self._blocks
        number = int(part.rpartition("-")[2])
        block = pin.blocks[number]
        assert blocks is not None
        return BlockPart(block.rows, unpack_schema(pin.schema), lambda: blocks.fetch(number, block), state or 0)


class BlockPart(BasePart[dict[str, Any]]):
    """Returns the rows of one block from ``row`` on; ``fetch`` begins to fetch it, at the first poll."""

    wait_max_s = 0.02

    def __init__(
        self, rows: int, schema: pa.Schema, fetch: Callable[[], Callable[[], pa.Table | None]], row: int
    ) -> None:
        self._rows = rows
        self._schema = schema
        self._begin = fetch
        self._fetch: Callable[[], pa.Table | None] | None = None
        self._table: pa.Table | None = None
        self._row = row

    def poll(self, rows_max: int) -> Any:
        if self._table is None:
            if self.is_finished():
                return None
            self._fetch = self._fetch or self._begin()
            table = self._fetch()
            if table is None:
                return None
            self._table = as_schema(table, self._schema)
        assert self._table is not None
        polled = self._table.slice(self._row, rows_max).combine_chunks().to_batches()
        if not polled:
            return None
        self._row += polled[0].num_rows
        return polled[0]

    def is_finished(self) -> bool:
        return self._row >= self._rows

    def snapshot(self) -> int:
        return self._row

    def lag_rows(self) -> int:
        return self._rows - self._row

    def close(self) -> None:
        self._table = self._fetch = None


def is_dataset(ds: object) -> bool:
    """Return whether ``ds`` is a dataset of Ray Data, without importing Ray.

    >>> is_dataset([1, 2])
    False
    """
    module = sys.modules.get("ray.data")
    return module is not None and isinstance(ds, module.Dataset)


def pinned(
    ds: Any, job: str, parts: int | None, staging: Path | None, *, keep_staging: bool
) -> tuple[Pin, Blocks, PinFolder | None]:
    """Compute ``ds`` and pin its blocks; return the pin, the blocks and the locked folder of their files, if any.

    Raises:
        PlanError: Ray does not run in this program.
        SourceError: the dataset cannot be computed, read or staged.
    """
    ray = _ray()
    try:
        refs = (ds if parts is None else ds.repartition(parts)).materialize().to_arrow_refs()
    except Exception as error:  # of any type: of functions of the dataset, and of Ray Data before it runs a task
        raise SourceError(f"Ray cannot compute the dataset: {_reason(error)}") from error
    try:
        if staging is None:
            return _pin_of_blocks(inspect_all(refs, None), None), StoredBlocks(refs), None
        with staging_folder(staging, job, keep=keep_staging) as folder:
            folder.rows.mkdir()
            pin = _pin_of_blocks(inspect_all(refs, folder.rows), str(folder.path))
            blocks = StagedBlocks(folder.rows)
            blocks.check(len(pin.blocks))
            folder.note({"job": job, "keep": keep_staging, **pin.record()})
        return pin, blocks, folder
    except ray.exceptions.RayError as error:
        raise SourceError(f"Ray cannot return the blocks of the dataset: {_reason(error)}") from error


def _pin_of_blocks(found: Sequence[tuple[Block, bytes]], staged: str | None) -> Pin:
    schema = joined_schema([packed for block, packed in found if block.rows])
    return Pin(secrets.token_hex(16), schema, tuple(block for block, _ in found), staged)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise PlanError(f"sources.RayDataset needs Ray: {pip_install('ray')}") from error
    if not ray.is_initialized():
        raise PlanError("sources.RayDataset: Ray does not run in this program (any more): call ray.init(…) first")
    return ray


def _is_alive(blocks: Blocks | None) -> bool:
    return isinstance(blocks, StoredBlocks) and blocks.is_alive


def _reason(error: BaseException) -> str:
    """Return the first exception in the text of ``error``: the innermost, which the others were raised for."""
    lines = [line for line in map(str.strip, text_of(error).splitlines()) if line]
    named = [line for line in lines if _EXCEPTION.match(line) and not line.startswith("ray.")]
    return next(iter([*named, *lines]), type(error).__name__)
