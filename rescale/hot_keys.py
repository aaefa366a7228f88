"""Hot keys: those that are too heavy for one worker, so that more workers do not help. Pure.

A key is hot if it makes more of the rows of an exchange than one of the workers is to have, and keeps its worker busy
for more than `TARGET_BUSY` of the time. It cools when one of the two is below `COOL` of that, so that a key at the
bound does not change with each measurement.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from malstrom_py.metrics import HotKey

TARGET_BUSY: Final = 0.7
"""The part of its time that a worker is to be busy with one key at most."""

COOL: Final = 0.8

HOT_MAX: Final = 64
"""The largest number of hot keys. By their share there are fewer than workers for each exchange."""


class HotKeys:
    """The hot keys of a job.

    >>> keys = HotKeys()
    >>> keys.update([HotKey("by-user", "'ann'", share=0.6, busy=0.8, worker=1)], workers=2)
    ([HotKey(step='by-user', key="'ann'", share=0.6, busy=0.8, worker=1)], [])
    >>> keys.update([HotKey("by-user", "'ann'", share=0.45, busy=0.7, worker=1)], workers=2)
    ([], [])
    >>> keys.update([HotKey("by-user", "'ann'", share=0.2, busy=0.3, worker=1)], workers=2)
    ([], [HotKey(step='by-user', key="'ann'", share=0.2, busy=0.3, worker=1)])
    """

    def __init__(self) -> None:
        self._hot: dict[tuple[str, str], HotKey] = {}

    @property
    def hot(self) -> list[HotKey]:
        """The keys that are hot now, the heaviest first."""
        return sorted(self._hot.values(), key=lambda key: (-key.share, key.step, key.key))

    def update(self, measured: Iterable[HotKey], *, workers: int) -> tuple[list[HotKey], list[HotKey]]:
        """Take the heaviest keys of now, of a job with this number of workers. Return those that have become hot, and
        those that have cooled; one that is not among ``measured`` has.
        """
        before, self._hot = self._hot, {}
        seen: dict[tuple[str, str], HotKey] = {}
        for key in sorted(measured, key=lambda key: -key.share):
            seen.setdefault((key.step, key.key), key)
        for name, key in seen.items():
            bound = COOL if name in before else 1.0
            hot = key.share * workers > bound and key.busy >= bound * TARGET_BUSY
            if hot and workers > 1 and len(self._hot) < HOT_MAX:
                self._hot[name] = key
        begun = [key for name, key in self._hot.items() if name not in before]
        return begun, [seen.get(name, key) for name, key in before.items() if name not in self._hot]
