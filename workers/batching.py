"""How batches are cut and how much may be on its way: the trade between throughput, latency and memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from malstrom_py.errors import PlanError
from malstrom_py.rescale.channel import Credit


@dataclass(frozen=True, slots=True)
class Batching:
    """A batch is cut by rows, by bytes, and by time, whichever comes first.

    All fields are upper bounds: where rows take long, fewer are read at once and fewer are in flight, so that
    snapshots, rescales and commands get through in about a second (F2).

    ``rows_max``: rows per poll of a source part and per batch to another worker (1,024: larger ones make Python's
    garbage collector work; see the design note on the hot loop). ``bytes_max``: encoded size of a batch to another
    worker, about. ``linger_s``: how long rows for another worker wait for more, and how long a part that has nothing
    is left alone. ``credit``: rows and bytes that may be under way on one channel between two workers (F2).
    ``columns_rows_max``: rows per poll, and per batch to another worker, where all steps from a source to its exchange
    or sink take columns: these are the faster the more come at once.

    >>> Batching(rows_max=256).linger_s
    0.005
    """

    rows_max: int = 1024
    bytes_max: int = 1 << 20
    linger_s: float = 0.005
    columns_rows_max: int = 131_072
    credit: Credit = field(default_factory=Credit)

    def __post_init__(self) -> None:
        if not isinstance(self.rows_max, int) or isinstance(self.rows_max, bool) or self.rows_max < 1:
            raise PlanError(f"Batching: rows_max is a whole number of at least 1, got {self.rows_max!r}")
        rows = self.columns_rows_max
        if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
            raise PlanError(f"Batching: columns_rows_max is a whole number of at least 1, got {rows!r}")
        if not isinstance(self.bytes_max, int) or isinstance(self.bytes_max, bool) or self.bytes_max < 1:
            raise PlanError(f"Batching: bytes_max is a whole number of at least 1, got {self.bytes_max!r}")
        if not isinstance(self.linger_s, int | float) or not 0 <= self.linger_s <= 60:
            raise PlanError(f"Batching: linger_s is a time from 0 to 60 seconds, got {self.linger_s!r}")
        if not isinstance(self.credit, Credit):
            raise PlanError(f"Batching: credit is a Credit(rows=, size=), got {self.credit!r}")
