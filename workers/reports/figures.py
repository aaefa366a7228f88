"""The figures of one worker at a moment, which its counts do not have: where it is, not what it has done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from malstrom_py.metrics import HeavyKey, HeavySlot, PartMetrics

TALLY_S: Final = 0.5
"""The interval of count reports to the coordinator while the worker works."""

TALLIES_PER_S_MAX: Final = 250
"""How many count reports the coordinator gets in a second, of all workers."""


def tally_s(workers: int) -> float:
    """Return the interval of count reports of each of ``workers`` workers.

    >>> tally_s(4), tally_s(1_000)
    (0.5, 4.0)
    """
    return max(TALLY_S, workers / TALLIES_PER_S_MAX)


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """The figures of a worker. ``busy_s``: the time it has worked, ``waiting_s``: idled with a backlog.

    ``arrived``: rows that have arrived by each exchange, and ``backlog``: rows there that wait for credit;
    ``slot_loads``: about what the rows of each slot weigh that have arrived (`rescale.load.row_weight`), from
    ``sampled`` of them, with the sum of the squares of what each counted for; ``state_bytes``: about how large the
    state of each keyed step is. The others are as in `malstrom_py.metrics`, the process as in `WorkerMetrics`.
    """

    host: str = ""
    pid: int = 0
    cpu_s: float = 0.0
    rss_bytes: int = 0
    state_in_memory: int = 0
    state_on_disk: int = 0
    found_on_disk: int = 0
    not_on_disk: int = 0
    busy_s: float = 0.0
    waiting_s: float = 0.0
    arrived: Mapping[str, int] = field(default_factory=dict, hash=False)
    backlog: Mapping[str, int] = field(default_factory=dict, hash=False)
    slot_loads: Mapping[int, int] = field(default_factory=dict, hash=False)
    sampled: int = 0
    sampled_squares: float = 0.0
    state_bytes: Mapping[str, int] = field(default_factory=dict, hash=False)
    parts: Sequence[PartMetrics] = ()
    heavy_keys: Sequence[HeavyKey] = ()
    heavy_slots: Sequence[HeavySlot] = ()


def format_size(size: int) -> str:
    """Return a number of bytes with its unit.

    >>> format_size(999), format_size(1_500_000), format_size(2_500_000_000)
    ('999 B', '1.5 MB', '2.5 GB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size} B"
