"""The type of the ``partitioner=`` of ``key_by``, and its check; `malstrom_py.partitioners` implements it (F3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from malstrom_py.errors import PlanError


class Bindable(Protocol):
    """A partitioner as the builder uses it: it can be bound to a number of slots."""

    def bind(self, slots: int, *, step: str = "") -> Any:
        """Return this partitioner for ``step`` of a job with ``slots`` slots."""
        ...


PartitionerLike = Bindable | Callable[[Any], int]
"""A partitioner, or your own function: key -> slot."""


def check_partitioner(partitioner: object, step: str) -> Any:
    """Return ``partitioner`` if it is None or may be a partitioner; raise `PlanError` naming ``step`` otherwise."""
    if partitioner is not None and not (callable(partitioner) or hasattr(partitioner, "bind")):
        raise PlanError(
            f"step {step!r}: partitioner must be one of malstrom_py.partitioners or a function key -> slot, "
            f"got {type(partitioner).__name__}"
        )
    return partitioner
