"""The panes of sliding windows whose results depend on the order of arrival: `RunPanes`.

A pane holds, per key, runs: what records have gathered that arrived one after the other. The runs of a key are numbered
over all its panes, and those of a window are merged by their numbers. Rules: a record that arrives after one in another
pane starts a run, so a run is the same however batches are cut and keys move. What is merged or sent is a copy, for a
user's function may change what it is given, and the next window has the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final, NamedTuple, cast

from malstrom_py.operators.panes import Pane, Panes

_MANY: Final = 16
"""So many rows of one pane in a row are taken key by key."""

UNNUMBERED: Final = -1
"""The number of a run from a snapshot without numbers; of several, those of earlier panes come first."""


class Rows(NamedTuple):
    """The runs of some rows. ``runs``: of each row, as a name; ``places``: of each run its key, number and pane;
    ``states``: what the runs that continue have gathered.
    """

    runs: Sequence[Any]
    places: dict[Any, tuple[Any, int, int]]
    states: dict[Any, Any]


class RunPanes(Panes):
    """``open`` is pane -> key -> number, state, number, state … As a mapping: key -> {(pane, number): state}.

    ``own`` copies a state.

    >>> panes = RunPanes(own=list)
    >>> for keys, starts, values in ((["ant", "ant"], [0, 10], [1, 2]), (["ant"], [0], [3])):
    ...     rows = panes.runs_of(keys, starts)
    ...     for run, value in zip(rows.runs, values):
    ...         rows.states.setdefault(run, []).append(value)
    ...     panes.put(rows)
    >>> panes["ant"]
    {(0, 0): [1], (0, 2): [3], (10, 1): [2]}
    >>> panes.merged([0, 10], lambda earlier, later: earlier + later)
    {'ant': [1, 2, 3]}
    """

    __slots__ = ("_held", "_latest", "_own")

    def __init__(self, *, own: Callable[[Any], Any]) -> None:
        super().__init__()
        self._held = cast("dict[int, dict[Any, list[Any]]]", self.open)
        self._own = own
        self._latest: dict[Any, tuple[int | None, int]] = {}

    def runs_of(self, keys: Sequence[Any], panes: Sequence[int]) -> Rows:
        """Return the runs of rows that arrive now, in their order, and that are in ``panes``."""
        latest, runs, places = self._latest, list[Any](), dict[Any, tuple[Any, int, int]]()
        for key, pane in zip(keys, panes, strict=True):
            last = latest.get(key)
            if last is None or last[0] != pane:
                last = latest[key] = self._next(key, pane)
            run = (key, last[1])
            runs.append(run)
            places[run] = (key, last[1], pane)
        return Rows(runs, places, self._states_of(places))

    def runs_in(self, pane: int, keys: Sequence[Any]) -> Rows:
        """Do as `runs_of`, for rows that are all in ``pane``: one run per key."""
        latest, places = self._latest, dict[Any, tuple[Any, int, int]]()
        for key in dict.fromkeys(keys):
            last = latest.get(key)
            if last is None or last[0] != pane:
                last = latest[key] = self._next(key, pane)
            places[key] = (key, last[1], pane)
        return Rows(keys, places, self._states_of(places))

    def _next(self, key: Any, pane: int) -> tuple[int, int]:
        """Return ``pane``, and the number of the run of ``key`` that a record continues there, or starts."""
        last = self._latest.get(key) or self._last_of(key)
        return pane, last[1] + (last[0] != pane)

    def _states_of(self, places: dict[Any, tuple[Any, int, int]]) -> dict[Any, Any]:
        states = {}
        for run, (key, number, pane) in places.items():
            there = self._held.get(pane)
            known = None if there is None else there.get(key)
            if known and known[-2] == number:
                states[run] = known[-1]
        return states

    def put(self, rows: Rows) -> None:
        """Set what the runs of ``rows`` have gathered; one that has no state is none."""
        states = rows.states
        for run, (key, number, pane) in rows.places.items():
            if run not in states:
                self._latest.pop(key, None)
                continue
            there = self._held.get(pane)
            if there is None:
                there = self._held[pane] = {}
            known = there.get(key)
            if known is None:
                there[key] = [number, states[run]]
            elif known[-2] == number:
                known[-1] = states[run]
            else:
                known += (number, states[run])

    def _last_of(self, key: Any) -> tuple[int | None, int]:
        """Return the pane and the number of the last run of ``key``."""
        last: tuple[int | None, int] = (None, UNNUMBERED)
        for pane in sorted(self._held):
            known = self._held[pane].get(key)
            if known and known[-2] >= last[1]:
                last = (pane, known[-2])
        return last

    def pop_pane(self, pane: int) -> Pane:
        latest = self._latest
        for key in self._held[pane]:
            if key in latest and latest[key][0] == pane:
                del latest[key]
        return super().pop_pane(pane)

    def merged(
        self, panes: Iterable[int], merge: Callable[[Any, Any], Any], keys: Collection[Any] | None = None
    ) -> Pane:
        of_keys: dict[Any, list[tuple[int, int, Any]]] = {}
        for pane in panes:
            for key, known in self._held[pane].items():
                if keys is not None and key not in keys:
                    continue
                if key in of_keys:
                    of_keys[key] += _numbered(known, pane)
                else:
                    of_keys[key] = _numbered(known, pane)
        own = self._own
        states = {}
        for key, runs in of_keys.items():
            if len(runs) == 1:
                states[key] = own(runs[0][2])
            else:
                runs.sort(key=_order)
                states[key] = reduce(merge, [own(state) for _, _, state in runs])
        return states

    # The mapping

    def many(self, keys: Sequence[Any]) -> list[Any]:
        found: list[dict[tuple[int, int], Any]] = [{} for _ in keys]
        for pane, there in sorted(self._held.items(), key=itemgetter(0)):
            for of_key, key in zip(found, keys, strict=True):
                if key in there:
                    of_key.update(((pane, number), state) for number, _, state in _numbered(there[key], pane))
        return [states or None for states in found]

    def take(self, keys: Sequence[Any]) -> list[Any]:
        for key in keys:
            self._latest.pop(key, None)
        return super().take(keys)

    def set_many(self, keys: Iterable[Any], values: Iterable[Mapping[Any, Any]]) -> None:
        for key, of_key in zip(keys, values, strict=True):
            self._latest.pop(key, None)
            runs: dict[int, list[Any]] = {}
            for where, state in of_key.items():
                pane, number = where if isinstance(where, tuple) else (where, UNNUMBERED)
                runs.setdefault(pane, []).extend((number, state))
            for pane, known in runs.items():
                self._held.setdefault(pane, {})[key] = known

    def clear(self) -> None:
        super().clear()
        self._latest.clear()


_order = itemgetter(0, 1)


def _numbered(known: Sequence[Any], pane: int) -> list[tuple[int, int, Any]]:
    """Return the number, the pane and the state of each run of a key in ``pane``."""
    if len(known) == 2:
        return [(known[0], pane, known[1])]
    return list(zip(known[::2], repeat(pane), known[1::2], strict=False))


def stretches(panes: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """Cut rows into stretches of one pane, or of several that alternate: first row, row after the last, whether of one.

    >>> [*stretches([0] * 20 + [10, 0, 10] + [10] * 19)]
    [(0, 20, True), (20, 22, False), (22, 42, True)]
    """
    begin = place = 0
    for _, same in groupby(panes):
        end = place + len(list(same))
        if end - place >= _MANY:
            if begin < place:
                yield begin, place, False
            yield place, end, True
            begin = end
        place = end
    if begin < place:
        yield begin, place, False
