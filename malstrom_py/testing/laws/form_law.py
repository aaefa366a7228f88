"""The law of the form of rows: columns, rows and a mix of both give the same output.

A step may process columns by other code than rows, which batches of rows never show, and keep, move and persist its
state in another form. So keyed steps are also disturbed: their keys leave and return, and new instances are installed.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final

from malstrom_py.data.batch import Batch, ColumnBatch
from malstrom_py.data.messages import DataMessage
from malstrom_py.data.row_form import DICTS, SCALAR, RowForm
from malstrom_py.errors import MalstromError
from malstrom_py.testing.laws.output_laws import REKEYING
from malstrom_py.testing.laws.scenario import (
    Broken,
    Delivery,
    Owner,
    Scenario,
    ScenarioRun,
    StepUnderTest,
    first_instance,
)
from malstrom_py.testing.single_step import part_of
from malstrom_py.testing.tester import OperatorTester, Persisted, batch_of

_ARROW: Final[Mapping[type, str]] = {bool: "bool", int: "int64", float: "float64", str: "string", bytes: "binary"}

_MIXES: Final[Mapping[str, Collection[int]]] = {
    "all batches are columns": (0, 1),
    "the first batch is columns, and every other one": (0,),
    "the second batch is columns, and every other one": (1,),
}


def forms(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that batches of columns give the output of batches of rows, alone and mixed with them."""
    in_columns = [_Columns.of(scenario, input) for input in range(subject.inputs)]
    if not any(in_columns):
        return False
    _compare(_FormRun, subject, scenario, in_columns, broken)
    if subject.keyed and not subject.kinds & REKEYING:
        with suppress(MalstromError):  # rows alone do not survive it: other laws find that
            _compare(_DisturbedRun, subject, scenario, in_columns, broken)
    return True


def _compare(
    kind: type[_FormRun],
    subject: StepUnderTest,
    scenario: Scenario,
    in_columns: Sequence[_Columns | None],
    broken: Broken,
) -> None:
    """Compare runs of one kind over columns with that over rows."""
    rows = kind(subject, scenario, in_columns, ())
    rows.run([rows.build()])
    for mix, turns in _MIXES.items():
        play = kind(subject, scenario, in_columns, turns)
        try:
            play.run([play.build()])
        except MalstromError as error:
            raise broken.because(error, play.marks) from error
        broken.unless_same(rows.trace, play.trace, play.marks, where="all batches are rows", why=f"not where {mix}")


@dataclass(frozen=True, slots=True)
class _Columns:
    """The types of the columns of one input: of its values by name, and of its keys, None if they are of several."""

    kinds: Mapping[str, str]
    form: RowForm
    keys: str | None

    @classmethod
    def of(cls, scenario: Scenario, input: int) -> _Columns | None:
        """Return them if the values are dicts with the same fields, or single values, of one type each; else None."""
        inputs = scenario.inputs or (0,) * len(scenario.atoms)
        atoms = zip(scenario.atoms, inputs, strict=True)
        rows = [atom for atom, of_input in atoms if isinstance(atom, DataMessage) and of_input == input]
        values = [row.value for row in rows]
        names = list(values[0]) if values and type(values[0]) is dict else None
        if names is None:
            found, form = {"value": _kind_of(values)}, SCALAR
        elif all(type(value) is dict and list(value) == names for value in values):
            found, form = {name: _kind_of([value[name] for value in values]) for name in names}, DICTS
        else:
            return None
        kinds = {name: kind for name, kind in found.items() if kind is not None}
        return cls(kinds, form, _kind_of([row.key for row in rows])) if kinds and len(kinds) == len(found) else None

    def batch(self, rows: Batch) -> ColumnBatch:
        """Return ``rows`` as columns, times too; and keys if they are text or whole numbers, as after a ``key_by``."""
        import pyarrow as pa

        single = self.form is SCALAR
        lists = {name: rows.values if single else [value[name] for value in rows.values] for name in self.kinds}
        columns = {name: pa.array(lists[name], kind) for name, kind in self.kinds.items()}
        keyed: dict[str, Any] = {"keys": rows.keys}
        if rows.keys is not None and self.keys in ("int64", "string"):
            keyed = {"key_column": pa.array(rows.keys, self.keys)}
        times = None if rows.timestamps is None else pa.array(rows.timestamps, "int64")
        batch = pa.RecordBatch.from_pydict(columns)
        return ColumnBatch(batch, **keyed, time_column=times, part=rows.part, form=self.form)


def _kind_of(values: Sequence[Any]) -> str | None:
    """Return the Arrow type of ``values``, of which some may be None; None if no column holds exactly these values."""
    types = set(map(type, values)) - {NoneType} or {int}
    kind = _ARROW.get(types.pop()) if len(types) == 1 else None
    if kind == "int64" and any(value is not None and not -(1 << 63) <= value < 1 << 63 for value in values):
        return None
    return kind


class _FormRun(ScenarioRun):
    """A run that gives some batches as columns: of each two, those in ``turns``. ``marks``: which they were."""

    def __init__(
        self,
        subject: StepUnderTest,
        scenario: Scenario,
        in_columns: Sequence[_Columns | None],
        turns: Collection[int],
    ) -> None:
        super().__init__(subject, scenario, cuts=scenario.cuts)
        self._in_columns, self._turns = in_columns, turns
        self._turn = 1
        self.marks: dict[int, str] = {}

    def send(self, delivery: Delivery, rows: Sequence[DataMessage[Any, Any]], instance: OperatorTester) -> None:
        columns, self._turn = self._in_columns[delivery.input], 1 - self._turn
        if columns is None or self._turn not in self._turns:
            super().send(delivery, rows, instance)
            return
        self.marks[delivery.first] = "a batch of columns"
        part = None if self.subject.keyed else part_of(instance.single.inputs[delivery.input])
        batch = batch_of(copy.deepcopy(rows), keyed=self.subject.keyed, timed=self.subject.timed, part=part)
        instance.send_local(columns.batch(batch), input=delivery.input)


class _DisturbedRun(_FormRun):
    """A run that after a delivery lets some keys leave and return, continues with a new instance, or does nothing.

    The new instance is installed from the chain of what all instances have persisted, and continues that chain.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._chain: list[Persisted] = []

    def build(self, *, watched: bool = False) -> OperatorTester:
        """Make an instance that tracks which keys change."""
        return super().build(watched=watched).track(lambda keys: [0] * len(keys))

    def take(self, delivery: Delivery, instances: list[OperatorTester], *, owner: Owner = first_instance) -> None:
        """Deliver one batch or event, and disturb the instance."""
        super().take(delivery, instances, owner=owner)
        (instance,) = instances
        match delivery.first % 3:
            case 0:
                instances[0] = self._installed(instance)
            case 1:
                keys = sorted(instance.interrogate(), key=repr)
                instance.acquire(instance.collect(keys[::2]))
        self.note(instances)

    def _installed(self, instance: OperatorTester) -> OperatorTester:
        number = len(self._chain)
        self._chain.append(instance.barrier(f"s{number}", parent=f"s{number - 1}" if number else None))
        new = self.build()
        new.install(self._chain, (0,))
        new.continue_chain(f"s{number}")
        return new
