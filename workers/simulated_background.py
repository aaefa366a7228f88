"""What a simulated run writes beside its work: each piece waits until its turn has come, and may outlive the run.

Rule: pieces are done in any order, each in one go or torn by a crash. What is left when the run dies may happen yet,
before the next run takes over or behind that, as what a process does that does not know that it is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from malstrom_py.errors import FencedError, SnapshotError
from malstrom_py.workers.background import Done

T = TypeVar("T")

Work = Callable[[], Any]


class SimulatedBackground:
    """Does a piece of work when it is told to.

    >>> background, told = SimulatedBackground(), []
    >>> background.submit(lambda: 6 * 7, told.append)
    >>> background.turn(), background.pending
    (False, 1)
    >>> background.do(0)
    >>> background.turn(), told
    (True, [42])
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Work, Done]] = []
        self._back: deque[tuple[Done, Any]] = deque()

    @property
    def pending(self) -> int:
        """How much of it has not come back."""
        return len(self._waiting) + len(self._back)

    @property
    def waiting(self) -> int:
        """How many pieces nobody has done."""
        return len(self._waiting)

    @property
    def is_back(self) -> bool:
        """Whether `turn` has something to tell."""
        return bool(self._back)

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None], *, urgent: bool = True) -> None:
        """Have ``work`` done."""
        self._waiting.append((work, done))

    def do(self, number: int) -> None:
        """Do one of the pieces that wait. What a crash tears is not done any further."""
        work, done = self._waiting.pop(number)
        try:
            result = work()
        except SnapshotError as error:
            result = error
        self._back.append((done, result))

    def turn(self) -> bool:
        """Tell of what has been done since."""
        told = bool(self._back)
        while self._back:
            done, result = self._back.popleft()
            done(result)
        return told

    def close(self) -> None:
        """Nobody is told of anything any more."""
        self._back.clear()

    def left(self) -> list[Work]:
        """What nobody has done."""
        return [work for work, _ in self._waiting]


def outlived(work: Work) -> bool:
    """Do what a run has left that is dead: whether it was fenced off. Nobody asks what else it comes to."""
    try:
        work()
    except FencedError:
        return True
    except SnapshotError:
        return False
    return False
