"""Hypothesis strategies for streams: keys, values, rows with watermarks, batch cuts, schedules.

They shrink to few rows, simple values, early times and no cuts. Needs hypothesis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from malstrom_py.data.messages import MAX_EPOCH, DataMessage, Epoch
from malstrom_py.errors import pip_install
from malstrom_py.testing.laws.scenario import CHUNK_MAX, SLOTS, Atom, Scenario, SlotMove, Tick

try:
    from hypothesis import strategies as st
except ImportError:
    raise ImportError(
        f"check_operator and malstrom_py.testing.strategies need hypothesis, which is not installed: "
        f"{pip_install('testing')}"
    ) from None

Source = st.SearchStrategy[Any] | Sequence[Any]
"""A source of values or keys: a strategy, or a sequence of examples."""


def of(source: Source) -> st.SearchStrategy[Any]:
    """Return ``source`` as a strategy; a sequence becomes a choice of its items."""
    return source if isinstance(source, st.SearchStrategy) else st.sampled_from(source)


def keys() -> st.SearchStrategy[str]:
    """Return a strategy of few keys, so that keys repeat: "a" to "d", the first more often."""
    return st.sampled_from("aaabbcd")


def legal_keys() -> st.SearchStrategy[Any]:
    """Return a strategy of keys of all legal kinds (F4), including equal keys of different types."""
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
    """Return a strategy of whole numbers from -100 to 100."""
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
    """Draw the messages of one input: records (`DataMessage`), watermarks (`Epoch`) if ``timed``, the last at the end.

    Timestamps are above the last watermark. ``keys``: None for a stream without keys. ``ticks``: sometimes advance the
    clock. At most ``size_max`` records and watermarks.

    >>> from hypothesis import find
    >>> find(sequences(keys="a", values=[7], timed=True), lambda sequence: len(sequence) == 2)
    (DataMessage(key='a', value=7, timestamp=1), Epoch(time=9223372036854775807, idle=False))
    """
    return _atoms(draw(st.lists(_elements(values, keys, timed=timed, ticks=ticks), max_size=size_max)), timed=timed)


def batch_cuts(size: int) -> st.SearchStrategy[frozenset[int]]:
    """Return a strategy of the places before which ``size`` rows are cut into batches.

    >>> from hypothesis import find
    >>> find(batch_cuts(4), lambda cuts: len(cuts) > 1)
    frozenset({1, 2})
    """
    return st.frozensets(st.integers(1, size - 1)) if size > 1 else st.just(frozenset())


def schedules(members: int, *, size_max: int = 30) -> st.SearchStrategy[list[int]]:
    """Return a strategy of schedules: lists of numbers below ``members``, each the member whose turn it is."""
    return st.lists(st.integers(0, members - 1), max_size=size_max)


@st.composite
def scenarios(
    draw: st.DrawFn, *, values: Source | None, keys: Source | None, timed: bool, inputs: int, ticks: bool, size_max: int
) -> Scenario:
    """Draw a scenario, which determines one run of a law."""
    # The cuts and moves of a place are drawn with its atom, so that shrinking can leave out atoms one by one.
    element = st.tuples(
        _elements(values, keys, timed=timed, ticks=ticks),
        _MARK,
        st.integers(0, inputs - 1) if inputs > 1 else _FIRST,
        _MOVE,
    )
    elements = draw(st.lists(element, max_size=size_max) | st.lists(element, min_size=size_max // 2, max_size=size_max))
    size = len(elements) + 1
    moved = [*(move for *_, move in elements), *draw(st.tuples(_MOVE, _MOVE))]
    atoms = list(zip(_atoms([element for element, *_ in elements], timed=timed), _inputs(elements), strict=True))
    moves = _let_wait(atoms, [(place, _move(number)) for place, number in enumerate(moved) if number is not None])
    present = list(dict.fromkeys(atom.key for atom, _ in atoms if isinstance(atom, DataMessage)))
    drawn = [divmod(number, 9) for number in draw(_PLACES)]
    of_key = {key: drawn[number % len(drawn)] for number, key in enumerate(present)}
    first = draw(_FIRST_OWNERS)
    return Scenario(
        tuple(atom for atom, _ in atoms),
        inputs=tuple(input for _, input in atoms) if inputs > 1 else (),
        cuts=frozenset(place for place, (_, mark, *_) in enumerate(elements) if mark % 2),
        at=next((place for place, (_, mark, *_) in enumerate(elements) if mark // 2 == 4), size),
        owners=tuple(first >> slot & 1 for slot in range(SLOTS)),
        moves=moves,
        slots={key: slot for key, (slot, _) in of_key.items()},
        before={key: owner % 3 for key, (_, owner) in of_key.items()},
        after={key: owner // 3 for key, (_, owner) in of_key.items()},
        instances=(1 + max(owner % 3 for _, owner in drawn), 1 + max(owner // 3 for _, owner in drawn)),
    )


def _inputs(elements: Sequence[tuple[Any, ...]]) -> list[int]:
    """Return the input of each atom, including the final epoch."""
    return [*(input for *_, input, _ in elements), 0]


def _move(number: int) -> SlotMove:
    """Return the move that a number encodes, with its duration in place of its end. 0: no slot moves."""
    number, until = divmod(number, 6)
    number, chunk = divmod(number, len(_CHUNKS))
    number, lag = divmod(number, 3)
    owners: list[int | None] = []
    for _ in range(SLOTS):
        number, owner = divmod(number, len(_OWNERS))
        owners.append(_OWNERS[owner])
    return SlotMove(0, until, tuple(owners), _CHUNKS[chunk], lag)


def _let_wait(atoms: list[tuple[Atom, int]], drawn: Sequence[tuple[int, SlotMove]]) -> tuple[SlotMove, ...]:
    """Return the moves that start at the places ``drawn``; delay epochs and ticks in ``atoms`` during moves (R3)."""
    moves: list[SlotMove] = []
    ends = [*(place for place, _ in drawn), len(atoms)][1:]
    for (at, move), end in zip(drawn, ends, strict=False):
        within = atoms[at : min(at + move.until, end)]
        rows = [atom for atom in within if isinstance(atom[0], DataMessage)]
        atoms[at : at + len(within)] = [*rows, *(atom for atom in within if not isinstance(atom[0], DataMessage))]
        moves.append(replace(move, at=at, until=at + len(rows)))
    return tuple(moves)


def _elements(
    values: Source | None, keys: Source | None, *, timed: bool, ticks: bool
) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return a strategy of rows, epochs and ticks, with times relative to the last epoch."""
    kinds = ["row"] * 3 + ["epoch"] * timed + ["tick"] * ticks
    key = of(keys) if keys is not None else st.none()
    return st.tuples(st.sampled_from(kinds), key, of(_VALUES if values is None else values), _DELTA)


def _atoms(elements: Sequence[tuple[Any, ...]], *, timed: bool) -> tuple[Atom, ...]:
    atoms: list[Atom] = []
    epoch = 0
    for kind, key, value, delta in elements:
        if kind == "row":
            atoms.append(DataMessage(key, value, epoch + 1 + delta if timed else None))
        elif kind == "epoch":
            epoch += 1 + delta
            atoms.append(Epoch(epoch))
        else:
            atoms.append(Tick(1 + delta % 5))
    return (*atoms, Epoch(MAX_EPOCH))


_VALUES = values()
_DELTA = st.integers(0, 20)
_FIRST = st.just(0)

# Each draw of hypothesis is slow, so one number encodes several choices. `shrunk` simplifies them.
_MARK = st.integers(0, 9)
"""Encodes whether a batch ends here (odd), and whether the law's event happens here (8, 9)."""

_PLACES = st.tuples(*[st.integers(0, 9 * SLOTS - 1)] * 4)
"""For some keys: 9 times the slot, plus 3 times the instance after, plus the instance before."""

_FIRST_OWNERS = st.just(0) | st.integers(0, 2**SLOTS - 1)
"""The slots that instance 1 owns at first, as bits."""

_OWNERS = (None, 0, 1, 0, 1, 2)
_CHUNKS = (CHUNK_MAX, 2, 1)
_MOVE = st.one_of(st.none(), st.integers(0, 6 * len(_CHUNKS) * 3 * len(_OWNERS) ** SLOTS - 1))
"""The number that encodes the move that starts here, or None."""
