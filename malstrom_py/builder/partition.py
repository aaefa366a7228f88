"""What ``key_by`` takes as ``partitioner=``; `malstrom_py.partitioners` has those that come with this package (F3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from malstrom_py.errors import PlanError


class Bindable(Protocol):
    """A partitioner as the builder knows it: something that can be bound to a number of slots."""

    def bind(self, slots: int, *, step: str = "") -> Any:
        """This partitioner at work for ``step``, in a job of ``slots`` slots."""
        ...


PartitionerLike = Bindable | Callable[[Any], int]
"""A partitioner, or a function of your own: key -> slot."""


def check_partitioner(partitioner: object, step: str) -> Any:
    """``partitioner`` if it may be one, or None, else `PlanError` naming ``step``."""
    if partitioner is not None and not (callable(partitioner) or hasattr(partitioner, "bind")):
        raise PlanError(
            f"step {step!r}: partitioner is one of malstrom_py.partitioners or a function key -> slot, "
            f"got {type(partitioner).__name__}"
        )
    return partitioner
