"""What a region's feed needs of others: of the executor, of outputs, and of steps that hold records back."""

from __future__ import annotations

from typing import Protocol

from malstrom_py.batches import Batch
from malstrom_py.messages import Epoch, StateMessage


class Graph(Protocol):
    """The executor, as a region's feed needs it."""

    def push(self, node: int, message: Batch | Epoch | StateMessage, *, index: int = 0) -> None: ...

    def run(self) -> None: ...


class Backlog(Protocol):
    """What can be full: an output, or a step that holds records back."""

    @property
    def backlogged(self) -> bool: ...


class Holding(Backlog, Protocol):
    """A step that holds records back, and the epochs between them."""

    @property
    def holds_epochs(self) -> bool: ...

    @property
    def load(self) -> float: ...


class Moved(Protocol):
    """What has to know when keys come and go."""

    def moved(self, version: int) -> None: ...
