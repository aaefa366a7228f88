"""``aggregate``: several running figures per key at once.

Rule: what can raise comes before what changes a state, and a key's states are assigned together, so that a record that
fails leaves all of them as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from malstrom_py.agg import Aggregation, expression_of
from malstrom_py.batches import Batch, ColumnBatch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.keyed import KeyedOperator, Rows

Loop = Callable[[Rows, list[Any], dict[Any, Any]], None]
"""Takes rows until they end; appends one result per row, after the state of its key is set."""


class Aggregate(KeyedOperator):
    """Per record a dict: the name of each aggregate -> its result over the key's records so far.

    >>> import malstrom_py as mp
    >>> from malstrom_py import agg, sources
    >>> numbers = mp.Job("docs").source("numbers", sources.Memory([3, 4, 9])).key_by("parity", lambda n: n % 2)
    >>> mp.collect(numbers.aggregate("figures", n=agg.count(), least=agg.min(), mean=agg.mean()))
    [{'n': 1, 'least': 3, 'mean': 3.0}, {'n': 1, 'least': 4, 'mean': 4.0}, {'n': 2, 'least': 3, 'mean': 6.0}]
    """

    def __init__(self, context: StepContext, *, aggregations: Mapping[str, Aggregation[Any, Any]]) -> None:
        super().__init__(context)
        self._of_rows, self._blame = unrolled(aggregations)
        self._columns = columns_of(aggregations)
        self._of_columns = self._of_rows if self._columns is None else unrolled(aggregations, columns=self._columns)[0]
        self.takes_columns = self._columns is not None
        self._loop = self._of_rows

    def _taken(self, batch: Batch, out: Outlet) -> tuple[Batch, list[Any]]:
        self._loop = self._of_rows
        if self._columns is not None and isinstance(batch, ColumnBatch):
            columns = [column for name in self._columns if (column := batch.field(name)) is not None]
            if len(columns) == len(self._columns):
                self._loop = self._of_columns
                return batch, list(zip(*columns, strict=True)) if columns else [()] * len(batch)
        return batch, batch.values

    def update(self, rows: Rows, results: list[Any]) -> None:
        try:
            self._loop(rows, results, self.states)
        except Exception as error:
            trace = error.__traceback__.tb_next if error.__traceback__ else None
            self.function = self._blame.get(trace.tb_lineno) if trace else None
            raise


def columns_of(aggregations: Mapping[str, Aggregation[Any, Any]]) -> list[str] | None:
    """The columns that are looked up; None if a whole value is needed."""
    looking = [one.field for one in aggregations.values() if not one.blind]
    columns = [field for field in looking if isinstance(field, str)]
    return list(dict.fromkeys(columns)) if len(columns) == len(looking) else None


def unrolled(
    aggregations: Mapping[str, Aggregation[Any, Any]], *, columns: Sequence[str] | None = None
) -> tuple[Loop, dict[int, object]]:
    """The loop over rows, written out for ``aggregations``, and line of it -> the user's function that it calls.

    ``columns``: a value is a tuple of the values of these columns, instead of something that knows them by name.
    It is written out because an inner loop over the aggregates would take longer than they do. A key's states stand in
    a tuple, by the names of the aggregates in their order, so that the order of the arguments does not matter.

    >>> from malstrom_py import agg
    >>> loop, _ = unrolled({"n": agg.count(), "total": agg.sum("price")})
    >>> results, states = [], {}
    >>> loop(iter([("a", {"price": 2}), ("a", {"price": 5})]), results, states)
    >>> results, states
    ([{'n': 1, 'total': 2}, {'n': 2, 'total': 7}], {'a': (2, 7)})
    """
    lines: list[tuple[str, object]] = []
    known: dict[str, Any] = {}
    ones = dict(enumerate(one for _, one in sorted(aggregations.items())))
    place = {name: number for number, name in enumerate(sorted(aggregations))}
    taken = _fields(ones, columns, known, lines)
    for number, one in ones.items():
        known |= {f"init{number}": one.init, f"add{number}": one.add, f"finish{number}": one.finish}
        if one.check is not None:
            known[f"check{number}"] = one.check
            lines.append((f"check{number}(state{number}, {taken[number]})", blamed(one)))
    # An `add` that changes the state it is given comes last, when nothing can fail any more.
    for last in (False, True):
        for number, one in ones.items():
            if (one.check is not None) is last:
                add = expression_of(one.add) or f"add{number}({{state}}, {{value}})"
                finish = expression_of(one.finish) or f"finish{number}({{state}})"
                names = {"state": f"state{number}", "value": taken[number]}
                lines.append((f"state{number} = {add.format(**names)}", blamed(one)))
                lines.append((f"result{number} = {finish.format(**names)}", blamed(one, finishing=True)))
    known |= {f"name{number}": name for name, number in place.items()}
    states = "".join(f"state{number}, " for number in ones)
    head = [
        "def loop(rows, results, states):",
        "  get, append = states.get, results.append",
        "  for key, value in rows:",
        "    known = get(key)",
        f"    {states}= ({''.join(f'init{number}(), ' for number in ones)}) if known is None else known",
    ]
    result = ", ".join(f"name{place[name]}: result{place[name]}" for name in aggregations)
    tail = [f"    states[key] = ({states})", f"    append({{{result}}})"]
    exec("\n".join([*head, *(f"    {line}" for line, _ in lines), *tail]), known)
    return known["loop"], {number: blame for number, (_, blame) in enumerate(lines, len(head) + 1)}


def blamed(one: Aggregation[Any, Any], *, finishing: bool = False) -> object:
    """The user's function that is to be looked at when ``one`` fails, if there is one."""
    if one.field is not None:
        return itemgetter(one.field) if isinstance(one.field, str) else one.field
    own = one.finish if finishing else one.add
    return None if getattr(own, "__module__", "") == Aggregation.__module__ else own


def _fields(
    ones: Mapping[int, Aggregation[Any, Any]],
    columns: Sequence[str] | None,
    known: dict[str, Any],
    lines: list[tuple[str, object]],
) -> dict[int, str]:
    """Look each field up once, however many aggregates are of it: aggregate -> the variable that holds its field."""
    variables: dict[Any, str] = {}
    taken: dict[int, str] = {}
    for number, one in ones.items():
        field = one.field
        same = field if isinstance(field, str) else id(field)  # a function may be no key of a dict
        if field is not None and same not in variables:
            variables[same] = f"field{len(variables)}"
            of = f"of_{variables[same]}"
            known[of] = columns.index(field) if columns is not None and isinstance(field, str) else field
            looked_up = f"value[{of}]" if isinstance(field, str) else f"{of}(value)"
            lines.append((f"{variables[same]} = {looked_up}", blamed(one)))
        taken[number] = "value" if field is None else variables[same]
    return taken
