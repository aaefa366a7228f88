"""How many workers a job may have."""

from __future__ import annotations

from typing import Final

from malstrom_py.errors import PlanError

WORKERS_MAX: Final = 128


def check_size(workers: object) -> None:
    """`PlanError` if a job cannot have so many ``workers``."""
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= WORKERS_MAX:
        raise PlanError(f"workers is a whole number from 1 to {WORKERS_MAX}, got {workers!r}")
