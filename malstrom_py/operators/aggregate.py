"""The running figures of a key: ``aggregate``, ``count``, ``sum``, ``reduce``, ``fold`` and their like.

``aggregate``: several running figures per key at once.

Rule: what can raise comes before what changes a state, and a key's states are assigned together, so that a record that
fails leaves all of them as they were.

``count``: how many records a key has had.

``sum``: the running sum per key.

``min``: the smallest value per key so far.

``max``: the largest value per key so far.

``mean``: the running mean per key.

``fold``: accumulates the values of a key into something else, running.

``reduce``: combines all values of a key into one, running.

``distinct``: each value once per key.

``top_n``: the largest values per key so far.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from malstrom_py.agg import Aggregation, expression_of
from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.operators.base import Outlet, StepContext
from malstrom_py.operators.forgotten_return import silence_of
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


class Count(KeyedOperator):
    """Per record the number of records of its key so far, this one included.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> mp.collect(job.source("words", sources.Memory(["a", "b", "a"])).key_by("word", str).count("seen"))
    [1, 1, 2]
    """

    needs_values = False

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, _ in rows:
            states[key] = count = get(key, 0) + 1
            results.append(count)


class Sum(KeyedOperator):
    """Per record the sum of its key's values so far, or of what ``by`` (function or column name) takes of them.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> sales = job.source("sales", sources.Memory([{"shop": "a", "n": 2}, {"shop": "a", "n": 3}]))
    >>> mp.collect(sales.key_by("shop", "shop").sum("sold", by="n"))
    [2, 5]
    """

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, value in rows:
            states[key] = total = get(key, 0) + value
            results.append(total)


_ABSENT: Any = object()


class Min(KeyedOperator):
    """Per record the smallest of its key's values so far, or of what ``by`` (function or column name) takes of
    them. Of equal values the first stays.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([4, 2, 6])).key_by("parity", lambda n: n % 2)
    >>> mp.collect(numbers.min("smallest"))
    [4, 2, 2]
    """

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, value in rows:
            best = get(key, _ABSENT)
            # The first value is compared as well, with itself: one without order must not stay and spoil the others.
            if value < (value if best is _ABSENT else best) or best is _ABSENT:
                states[key] = best = value
            results.append(best)


class Max(KeyedOperator):
    """Per record the largest of its key's values so far, or of what ``by`` (function or column name) takes of
    them. Of equal values the first stays.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([4, 2, 6])).key_by("parity", lambda n: n % 2)
    >>> mp.collect(numbers.max("largest"))
    [4, 4, 6]
    """

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, value in rows:
            best = get(key, _ABSENT)
            # The first value is compared as well, with itself: one without order must not stay and spoil the others.
            if value > (value if best is _ABSENT else best) or best is _ABSENT:
                states[key] = best = value
            results.append(best)


class Mean(KeyedOperator):
    """Per record the mean of its key's values so far, or of what ``by`` (function or column name) takes of them.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([2, 4, 9])).key_by("all", lambda n: "all")
    >>> mp.collect(numbers.mean("mean"))
    [2.0, 3.0, 5.0]
    """

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        get = states.get
        for key, value in rows:
            count, total = get(key, (0, 0))
            count, total = count + 1, total + value
            mean = total / count
            states[key] = (count, total)
            results.append(mean)


class Fold(KeyedOperator):
    """Per record ``fn(accumulated, value)``, from ``default()`` on. ``fn`` returns a new accumulation.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ab", "x", "acd"])).key_by("first", lambda word: word[0])
    >>> mp.collect(words.fold("letters", lambda total, word: total + len(word), default=int))
    [2, 1, 5]
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any, Any], Any], default: Callable[[], Any]) -> None:
        super().__init__(context, function=fn)
        self._fn = fn
        self._silence = silence_of(context, fn, "fold")
        self._default = default

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, fn, default = self.states, self._fn, self._default
        get = states.get
        for key, value in rows:
            accumulated = get(key, _ABSENT)
            if accumulated is _ABSENT:
                accumulated = default()
            states[key] = accumulated = fn(accumulated, value)
            results.append(accumulated)

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        if self._silence is not None and self._silence.over_after(len(batch)):
            self._silence = None
        super().emit(batch, results, out)


class Reduce(KeyedOperator):
    """Per record the key's values so far, combined: the first as it is, then ``fn(accumulated, value)``.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ab", "xy", "ac"])).key_by("first", lambda word: word[0])
    >>> mp.collect(words.reduce("joined", lambda joined, word: joined + word))
    ['ab', 'xy', 'abac']
    """

    def __init__(self, context: StepContext, *, fn: Callable[[Any, Any], Any]) -> None:
        super().__init__(context, function=fn)
        self._fn = fn
        self._silence = silence_of(context, fn, "reduce")

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, fn = self.states, self._fn
        get = states.get
        for key, value in rows:
            accumulated = get(key, _ABSENT)
            states[key] = combined = value if accumulated is _ABSENT else fn(accumulated, value)
            results.append(combined)

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        if self._silence is not None and self._silence.over_after(sum(result is None for result in results)):
            self._silence = None
        super().emit(batch, results, out)


class Distinct(KeyedOperator):
    """Passes the first record of each value per key, or of each ``by`` (function or column name); the others are
    counted as filtered. What has been seen is kept as long as the job runs.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> words = job.source("words", sources.Memory(["ant", "ape", "ant"])).key_by("letter", lambda w: w[0])
    >>> mp.collect(words.distinct("new"))
    ['ant', 'ape']
    """

    def __init__(self, context: StepContext, *, by: Callable[[Any], Any] | None) -> None:
        super().__init__(context, function=by, by=by)

    def update(self, rows: Rows, results: list[Any]) -> None:
        states = self.states
        for key, value in rows:
            seen = states.get(key)
            if seen is None:
                states[key] = {value}
                results.append(True)
            else:
                new = value not in seen
                if new:
                    seen.add(value)
                    states[key] = seen  # state changes by assignment only
                results.append(new)

    def emit(self, batch: Batch, results: list[Any], out: Outlet) -> None:
        kept = batch.compress(results)
        self.counters.filtered += len(batch) - len(kept)
        out.send(kept)


class TopN(KeyedOperator):
    """Per record the list of its key's ``n`` largest values so far, by ``by`` (function, column name, or the value
    itself), largest first. Of equal ones the first stays ahead.

    >>> import malstrom_py as mp
    >>> from malstrom_py import sources
    >>> job = mp.Job("docs")
    >>> numbers = job.source("numbers", sources.Memory([4, 9, 5])).key_by("all", lambda n: "all")
    >>> mp.collect(numbers.top_n("top", 2))
    [[4], [9, 4], [9, 5]]
    """

    def __init__(self, context: StepContext, *, n: int, by: Callable[[Any], Any] | None) -> None:
        super().__init__(context, function=by)
        self._n = n
        self._rank = by

    def update(self, rows: Rows, results: list[Any]) -> None:
        states, n, rank_of = self.states, self._n, self._rank
        for key, value in rows:
            rank = value if rank_of is None else rank_of(value)
            # Ranks beside their values, ascending, the later of equals first: the end is the top.
            ranks, best = states.get(key, ((), ()))
            # The first value is compared as well, with itself: one without order must not stay and spoil the others.
            place = bisect_left(ranks or (rank,), rank)
            ranks, best = [*ranks[:place], rank, *ranks[place:]][-n:], [*best[:place], value, *best[place:]][-n:]
            states[key] = (ranks, best)
            results.append(best[::-1])
