"""The clauses of the contract of sinks, and what its checks write and see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from malstrom_py.batches import Batch
from malstrom_py.sinks.base import CommitContext, SnapshotId
from malstrom_py.testing.contracts.clauses import require
from malstrom_py.testing.exact import same
from malstrom_py.worker_info import WorkerId, WorkerInfo

HIDDEN: Final = "hidden until committed"
COMMITTED: Final = "committed rows are visible"
IDEMPOTENT: Final = "commit is idempotent"
ABORTED: Final = "abort leaves nothing"
RECOVERED: Final = "recover clears"
KEPT: Final = "recover keeps what is committed"
ELSEWHERE: Final = "another process goes on"
UNCHANGED: Final = "batches stay as they were"
ORDER: Final = "rows in order"
PART: Final = "stable parts"
POSITION: Final = "plain position"
RESTORED: Final = "exact position"

Read = Callable[[Any], Iterable[Any]]


def batch_of(values: Sequence[Any]) -> Batch:
    """A batch of ``values``, with keys and timestamps."""
    return Batch(list(values), keys=[index % 3 for index in range(len(values))], timestamps=list(range(len(values))))


def context_of(number: int, *, incarnation: int = 1, final: bool = True) -> CommitContext:
    """The context of a snapshot, the larger the later."""
    snapshot = SnapshotId(f"20200101T00000{number}000000Z-0000")
    return CommitContext("contract", "out", snapshot, incarnation, final=final)


def worker_of(number: int = 0) -> WorkerInfo:
    """A worker."""
    return WorkerInfo("contract", "out", WorkerId(number))


def require_visible(
    sink: Any, read: Read, expected: Sequence[Any], clause: str, what: str, *, ordered: bool = True
) -> None:
    """`LawError` naming ``clause`` unless just the ``expected`` values are visible."""
    got = list(read(sink))
    wanted = list(expected)
    if not ordered:
        got, wanted = sorted(got, key=repr), sorted(wanted, key=repr)
    if ordered and clause != HIDDEN and sorted(map(repr, got)) == sorted(map(repr, wanted)) and not same(got, wanted):
        clause, what = ORDER, "what one writer has written is visible in that order"
    require(same(got, wanted), clause, what, f"expected {wanted}\n  got      {got}")
