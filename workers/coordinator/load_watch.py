"""The loads of a run: the weights of its slots for placement (R10), and the keys that are too heavy for one worker.

Rule: `sample` is called with the samples of the metrics. What is decided of them is in `rescale.load` and
`rescale.hot_keys`; nothing here moves anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from malstrom_py.builder.plan import Plan
from malstrom_py.events import AnyEvent, HotKeyBegun, HotKeyEnded
from malstrom_py.metrics import HotKey
from malstrom_py.rescale.hot_keys import HotKeys
from malstrom_py.rescale.load import SlotLoads, Weights, imbalance
from malstrom_py.rescale.moves.protocol import Table
from malstrom_py.workers.reports.figures import WorkerFigures


class LoadWatch:
    """The loads of a run of ``plan``. ``publish`` is called with the events of hot keys."""

    def __init__(self, plan: Plan, publish: Callable[[AnyEvent], None]) -> None:
        self._slots = SlotLoads(plan.slots)
        self._keys = HotKeys()
        self._publish = publish

    @property
    def weights(self) -> Weights | None:
        """The weights of the slots; None until enough rows are counted."""
        return self._slots.weights

    @property
    def hot_keys(self) -> list[HotKey]:
        """The keys that are too heavy for one worker."""
        return self._keys.hot

    def imbalance(self, table: Table, members: Sequence[int]) -> float | None:
        """Return the load of the most loaded of ``members`` over the mean; None until loads are known."""
        weights = self.weights
        return None if weights is None else imbalance(table, members, weights)

    def sample(
        self, now_s: float, figures: Mapping[int, WorkerFigures], keys: Iterable[HotKey], members: Sequence[int]
    ) -> None:
        """Take the figures of the workers, and of the heaviest ``keys``, at ``now_s`` of the monotonic time."""
        counted = {worker: found.slot_loads for worker, found in figures.items()}
        sampled = sum(found.sampled for found in figures.values())
        squares = sum(found.sampled_squares for found in figures.values())
        self._slots.note(now_s, counted, sampled=sampled, squares=squares)
        self._announce(*self._keys.update(keys, workers=len(members)))

    def close(self) -> None:
        """Publish the end of what is hot: the run ends."""
        self._announce(*self._keys.update([], workers=1))

    def _announce(self, begun: Iterable[HotKey], ended: Iterable[HotKey]) -> None:
        for key in begun:
            self._publish(HotKeyBegun(key.step, key.key, key.worker, key.share, key.busy))
        for key in ended:
            self._publish(HotKeyEnded(key.step, key.key))
