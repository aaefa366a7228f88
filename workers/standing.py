"""What a worker that runs by itself tells its coordinator of its own accord: how it stands, and what it has done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from malstrom_py.workers.result import StepCounts


@dataclass(frozen=True, slots=True)
class Standing:
    """How ``worker`` stands, told whenever that changes. ``version``: of the table it sends by.

    ``finished`` and ``suspended`` count only where ``version`` is the coordinator's: what moves may wake a worker.
    """

    worker: int
    version: int
    finished: bool
    suspended: bool


@dataclass(frozen=True, slots=True)
class Tally:
    """What the steps of ``worker`` have done so far: told now and then while it gets on, or awaits calls of its own."""

    worker: int
    counts: Mapping[str, StepCounts] = field(hash=False)


News = Standing | Tally
"""From a worker to the coordinator, beside its reports."""
