"""How batches are cut: the trade between throughput and latency."""

from __future__ import annotations

from dataclasses import dataclass

from malstrom_py.errors import PlanError


@dataclass(frozen=True, slots=True)
class Batching:
    """``rows_max``: rows per poll of a source part (1,024: larger ones make Python's garbage collector work; see the
    design note on the hot loop). ``linger_s``: how long a part that has nothing is left alone before it is asked again.

    >>> Batching(rows_max=256)
    Batching(rows_max=256, linger_s=0.005)
    """

    rows_max: int = 1024
    linger_s: float = 0.005

    def __post_init__(self) -> None:
        if not isinstance(self.rows_max, int) or isinstance(self.rows_max, bool) or self.rows_max < 1:
            raise PlanError(f"Batching: rows_max is a whole number of at least 1, got {self.rows_max!r}")
        if not isinstance(self.linger_s, int | float) or not 0 <= self.linger_s <= 60:
            raise PlanError(f"Batching: linger_s is a time from 0 to 60 seconds, got {self.linger_s!r}")
