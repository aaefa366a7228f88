"""Shadows: what the comparison of new code with a running step has found, as workers send it and users get it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

PAIRS_MAX: Final = 20
"""How many of the last differences are kept."""


@dataclass(frozen=True, slots=True)
class ShadowPair:
    """A difference: the outputs of the running and of the new code for ``key``, as texts; empty if there is none.

    ``output``: by which output of the step they left, if it has several.

    >>> print(ShadowPair("'b'", "1", "", output="late"))
    late: 'b': 1, new: nothing
    """

    key: str
    old: str
    new: str
    output: str = ""

    def __str__(self) -> str:
        by = f"{self.output}: " if self.output else ""
        return f"{by}{self.key}: {self.old or 'nothing'}, new: {self.new or 'nothing'}"


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The comparison of new code with that of ``step``, on the same input.

    ``compared``: how many outputs; ``different``: how many of these differ. ``failure``: why the new code has stopped;
    empty while it runs. ``pairs``: the last differences of each worker.

    >>> print(ShadowReport("total", 1200, 2, pairs=(ShadowPair("'a'", "3", "4"), ShadowPair("'b'", "1", ""))))
    step total: 2 of 1,200 outputs of the new code differ
      'a': 3, new: 4
      'b': 1, new: nothing
    """

    step: str
    compared: int
    different: int
    failure: str = ""
    pairs: tuple[ShadowPair, ...] = ()

    def __str__(self) -> str:
        lines = [f"step {self.step}: {self.different:,} of {self.compared:,} outputs of the new code differ"]
        if self.failure:
            lines.append(f"  the new code has stopped: {self.failure}")
        return "\n".join([*lines, *(f"  {pair}" for pair in self.pairs)])


@dataclass(frozen=True, slots=True)
class Compared:
    """What ``worker`` has compared since its last message: ``different`` of the ``compared`` outputs.

    ``snapshot``: all that it has compared up to the barrier of that snapshot has been sent with this message.
    """

    worker: int
    step: str
    compared: int
    different: int
    failure: str = ""
    pairs: tuple[ShadowPair, ...] = field(default=(), repr=False)
    snapshot: str | None = None
