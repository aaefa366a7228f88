"""Makes tests/vectors/staged-0.2: rows that sinks have pre-committed and not committed. All later versions commit them.

Run ``python -m tests.vectors.staged_rows FOLDER`` to make it elsewhere. After a version has been released, its folder
never changes: `tests/integration/sinks/test_earlier_payloads.py` commits and aborts what is in each.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from malstrom_py import sinks
from malstrom_py.data.batch import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerId, WorkerInfo

FOLDERS: Final = Path(__file__).parent
SNAPSHOT: Final = SnapshotId("20261128T133344099224Z-24b85589")
CONTEXT: Final = CommitContext("earlier", "out", SNAPSHOT, 1, final=False)
ROWS: Final[tuple[list[dict[str, Any]], ...]] = (
    [{"n": 1, "t": "a/b"}, {"n": 2, "t": "c"}],
    [{"n": 0.5, "t": None}],
)
"""What each worker has written; the types of ``n`` are those of one column together."""

KINDS: Final[dict[str, Callable[[Path], Any]]] = {
    "csv": lambda folder: sinks.Files(folder, format="csv", partition_by="t"),
    "json": lambda folder: sinks.Files(folder, format="json"),
    "parquet": sinks.Files,
    "spark": sinks.Spark,
    "delta": lambda folder: sinks.Delta(folder, partition_by="t"),
    "iceberg": lambda folder: sinks.Iceberg("earlier.rows", catalog=catalog_in(folder)),
}


def catalog_in(folder: Path) -> dict[str, str]:
    """Return the properties of a catalog in ``folder``."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def table_of(kind: str, folder: Path) -> Any:
    """Return the sink of ``kind`` in ``folder``, with a row of an earlier snapshot if it is of a table.

    The metadata of Iceberg name absolute paths, so tables are made where they are used.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sink = KINDS[kind](folder)
    if kind in {"delta", "iceberg"}:
        context = CommitContext("earlier", "before", SnapshotId("20261128T133300000000Z-00000000"), 1, final=False)
        writer = sink.open(WorkerInfo("earlier", "before", WorkerId(0)))
        writer.write(Batch([{"n": 7.5, "t": "old"}]))
        sink.commit(context, [writer.pre_commit(context)])
        writer.close()
    return sink


def make(folder: Path) -> None:
    """Pre-commit rows with each sink, and keep the staged files and the payloads; the tables are made by the test."""
    for kind in KINDS:
        sink, payloads = table_of(kind, folder / kind), []
        for worker, rows in enumerate(ROWS):
            # The types of a folder of Spark are those of all workers.
            typed = [{**row, "n": float(row["n"])} for row in rows] if kind == "spark" else rows
            writer = sink.open(WorkerInfo("earlier", "out", WorkerId(worker)))
            writer.write(Batch(typed))
            payloads.append(base64.b64encode(writer.pre_commit(CONTEXT)).decode())
            writer.close()
        for path in [path for path in (folder / kind).rglob("*") if path.is_file() and "_staging" not in path.parts]:
            path.unlink()
        (folder / kind / "payloads.json").write_text(json.dumps(payloads, indent=0))


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
