"""Hypothesis strategies for what streams are made of: keys, values, rows with epochs, batch cuts, schedules.

They shrink to few rows, simple values, early times and no cuts. Needs hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from malstrom_py.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.testing.laws.scenario import Atom, Scenario, Tick

try:
    from hypothesis import strategies as st
except ImportError as error:
    raise ImportError("malstrom_py.testing.strategies needs hypothesis: pip install hypothesis") from error

Source = st.SearchStrategy[Any] | Sequence[Any]
"""What values or keys are taken from: a strategy, or a sequence of examples."""


def of(source: Source) -> st.SearchStrategy[Any]:
    """``source`` as a strategy; one of a sequence's items each time."""
    return source if isinstance(source, st.SearchStrategy) else st.sampled_from(source)


def keys() -> st.SearchStrategy[str]:
    """Few different keys, so that records meet: "a" to "d"."""
    return st.sampled_from("abcd")


def legal_keys() -> st.SearchStrategy[Any]:
    """Keys of all kinds that are legal (F4), equal ones of several types among them."""
    plain = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.integers(),
        st.sampled_from([0.0, -0.0, 1.0, 2.5]),
        st.text(max_size=3),
        st.binary(max_size=3),
        st.decimals(allow_nan=False, places=1, min_value=-3, max_value=3),
        st.dates(),
        st.timedeltas(),
        st.uuids(),
    )
    return st.one_of(plain, st.tuples(plain, plain))


def values() -> st.SearchStrategy[int]:
    """Whole numbers from -100 to 100."""
    return st.integers(-100, 100)


@st.composite
def sequences(
    draw: st.DrawFn,
    *,
    values: Source | None = None,
    keys: Source | None = None,
    timed: bool = False,
    ticks: bool = False,
    size_max: int = 12,
) -> tuple[Atom, ...]:
    """What one input sees: records (`DataMessage`), epochs if it is ``timed``, the maximum epoch at the end.

    Timestamps are above the last epoch. ``keys``: None for a stream without keys. ``ticks``: let the clock go on now
    and then. At most ``size_max`` records and epochs.

    >>> from hypothesis import find
    >>> find(sequences(keys="a", values=[7], timed=True), lambda sequence: len(sequence) == 2)
    (DataMessage(key='a', value=7, timestamp=1), Epoch(time=9223372036854775807, idle=False))
    """
    return _atoms(draw(st.lists(_elements(values, keys, timed=timed, ticks=ticks), max_size=size_max)), timed=timed)


def batch_cuts(size: int) -> st.SearchStrategy[frozenset[int]]:
    """Where ``size`` rows are cut into batches: before each of these places.

    >>> from hypothesis import find
    >>> find(batch_cuts(4), lambda cuts: len(cuts) > 1)
    frozenset({1, 2})
    """
    return st.frozensets(st.integers(1, size - 1)) if size > 1 else st.just(frozenset())


def schedules(members: int, *, size_max: int = 30) -> st.SearchStrategy[list[int]]:
    """Whose turn it is, again and again: numbers below ``members``."""
    return st.lists(st.integers(0, members - 1), max_size=size_max)


@st.composite
def scenarios(
    draw: st.DrawFn, *, values: Source | None, keys: Source | None, timed: bool, inputs: int, ticks: bool, size_max: int
) -> Scenario:
    """All that a law needs to know about one run."""
    # What belongs to a place is drawn with the atom that stands there, so that atoms can be left out one by one.
    element = st.tuples(
        _elements(values, keys, timed=timed, ticks=ticks), st.booleans(), st.integers(0, 4), st.integers(0, inputs - 1)
    )
    elements = draw(st.lists(element, max_size=size_max))
    size = len(elements) + 1
    atoms = _atoms([element for element, *_ in elements], timed=timed)
    present = list(dict.fromkeys(atom.key for atom in atoms if isinstance(atom, DataMessage)))
    marked = [place for place, (_, _, mark, _) in enumerate(elements) if mark == 4]
    at, back = [*marked, size, size][:2]
    owners = draw(st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans())] * 4))
    owner = {key: owners[number % 4] for number, key in enumerate(present)}
    return Scenario(
        atoms,
        inputs=(*(input for *_, input in elements), 0) if inputs > 1 else (),
        cuts=frozenset(place for place, (_, cut, _, _) in enumerate(elements) if cut),
        at=at,
        back=back,
        moved=frozenset(key for key in present if owner[key][2]),
        before={key: owner[key][0] for key in present},
        after={key: owner[key][1] for key in present},
        instances=(1 + max(before for before, _, _ in owners), 1 + max(after for _, after, _ in owners)),
    )


def _elements(
    values: Source | None, keys: Source | None, *, timed: bool, ticks: bool
) -> st.SearchStrategy[tuple[Any, ...]]:
    """Rows, epochs and ticks, with times counted from the last epoch."""
    key = of(keys) if keys is not None else st.none()
    row = st.tuples(st.just("row"), key, of(_VALUES if values is None else values), _DELTA)
    choices: list[st.SearchStrategy[Any]] = [row, row, row]
    if timed:
        choices.append(st.tuples(st.just("epoch"), _DELTA))
    if ticks:
        choices.append(st.tuples(st.just("tick"), st.integers(1, 5)))
    return st.one_of(choices)


def _atoms(elements: Sequence[tuple[Any, ...]], *, timed: bool) -> tuple[Atom, ...]:
    atoms: list[Atom] = []
    epoch = 0
    for kind, *drawn in elements:
        if kind == "row":
            key, value, delta = drawn
            atoms.append(DataMessage(key, value, epoch + 1 + delta if timed else None))
        elif kind == "epoch":
            epoch += 1 + drawn[0]
            atoms.append(Epoch(epoch))
        else:
            atoms.append(Tick(drawn[0]))
    return (*atoms, Epoch(MAX_EPOCH))


_VALUES = values()
_DELTA = st.integers(0, 20)
