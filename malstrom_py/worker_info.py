"""Which worker something is built on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

WorkerId = NewType("WorkerId", int)
"""The number of a worker within its job: 0 to the number of workers - 1."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Which worker of which job a source or a sink is opened on, and for which step."""

    job: str
    step: str
    worker: WorkerId
