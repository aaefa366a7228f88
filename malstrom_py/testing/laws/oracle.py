"""The law of the oracle: the output of a step is the output that a user's function expects.

Rule: the oracle sees records, but no epochs, batches or workers, so the way in which a stream is processed cannot
affect its result. All other laws compare a step with itself; only this one knows the purpose of the step.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from malstrom_py.data.messages import DataMessage
from malstrom_py.testing.exact import same
from malstrom_py.testing.law_error import LawError
from malstrom_py.testing.laws.output_laws import REKEYING
from malstrom_py.testing.laws.scenario import DEAD_LETTERS, Broken, Scenario, Sent, StepUnderTest, baseline

ORACLE: Final = "oracle"
PROMISE: Final = "the output is what the oracle expects"

Oracle = Callable[..., Any]
"""Takes the records of one key, as `DataMessage`, one list per input; returns the expected output of that key."""


class OracleFailed(LawError):
    """The oracle raised ``error`` or returned a result of the wrong form, so the law cannot be tested.

    It is a `LawError` only for the search for the smallest input: `check_operator` raises ``error``.
    """

    def __init__(self, error: Exception, case: str) -> None:
        super().__init__(ORACLE, "the oracle failed", case=case)
        self.error = error

    def noted(self) -> Exception:
        """Return ``error`` with the input in its notes."""
        self.error.add_note("the oracle, or its result, raised this for the input:")
        self.error.add_note(self.case)
        return self.error


@dataclass(frozen=True, slots=True)
class Agreement:
    """The check of this law. ``in_order``: the outputs of a key must have the order of the oracle's result."""

    oracle: Oracle
    in_order: bool

    def __call__(self, subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
        """Compare the output of one undisturbed instance with the result of the oracle."""
        # If a step changes keys, its output cannot be compared with the records of one key.
        keyed = subject.keyed and not subject.kinds & REKEYING
        got = _sent(subject, scenario, keyed=keyed)
        outputs = subject.outputs
        if not outputs:
            raise ValueError("the factory returns no stream, so an oracle has no output to check")
        some = False
        for key in list(dict.fromkeys([*scenario.keys, *(key for _, key in got)])) if keyed else [None]:
            expected = self._expected(subject, scenario, key, keyed=keyed)
            for output, wanted in zip(outputs, expected, strict=True):
                found = got.get((output, key), [])
                some = some or bool(wanted or found)
                self._compare(output, key if keyed else None, wanted, found, broken)
        return some

    def _expected(self, subject: StepUnderTest, scenario: Scenario, key: Any, *, keyed: bool) -> list[list[Any]]:
        """Call the oracle for ``key``; return one list per output. `OracleFailed` if it fails."""
        inputs: list[list[DataMessage[Any, Any]]] = [[] for _ in range(subject.inputs)]
        for atom, input in zip(scenario.atoms, scenario.inputs or (0,) * len(scenario.atoms), strict=True):
            if isinstance(atom, DataMessage) and (not keyed or atom.key == key):
                inputs[input].append(atom)
        try:
            return _lists_of(self.oracle(*copy.deepcopy(inputs)), len(subject.outputs))
        except Exception as error:
            raise OracleFailed(error, scenario.shown(keyed=subject.keyed, timed=subject.timed, marks={})) from error

    def _compare(self, output: str, key: Any, wanted: list[Any], found: list[Sent], broken: Broken) -> None:
        whole = bool(wanted) and all(isinstance(one, DataMessage) for one in wanted)
        expected = [(one.key, one.value, one.timestamp) for one in wanted] if whole else wanted
        got: list[Any] = list(found) if whole else [value for _, value, _ in found]
        agree = same(expected, got) if self.in_order else _same_in_any_order(expected, got)
        if not agree:
            form = ", as (key, value, timestamp)" if whole else ", the values"
            order = "" if self.in_order else ", in any order"
            where = f"  {output}{'' if key is None else f', key {key!r}'}{form}{order}:"
            raise broken(f"{where}\n    expected  {expected}\n    got       {got}\n  (expected: by the oracle)")


def _sent(subject: StepUnderTest, scenario: Scenario, *, keyed: bool) -> dict[tuple[str, Any], list[Sent]]:
    """Return the records of the step, by output and key, in order."""
    trace = baseline(subject, scenario, cuts=scenario.cuts, keyed=keyed)
    sent: dict[tuple[str, Any], list[Sent]] = {}
    for _, groups in sorted(trace.records.items()):
        for group, records in groups.items():
            if group[0] != DEAD_LETTERS:
                sent.setdefault(group, []).extend(records)
    return sent


def _lists_of(said: Any, outputs: int) -> list[list[Any]]:
    """Return the result of an oracle as one list for each of ``outputs``. ValueError if it has another form."""
    if outputs == 1:
        return [_list_of(said, "the oracle", "a list of the expected values")]
    form = f"{outputs} lists, one for each output of the step, of the expected values"
    parts = _list_of(said, "the oracle", form)
    if len(parts) != outputs:
        raise ValueError(
            f"the step has {outputs} outputs, and the oracle returned {len(parts)} lists: return {outputs}"
        )
    return [_list_of(part, f"for output {number}, the oracle", form) for number, part in enumerate(parts)]


def _list_of(said: Any, who: str, form: str) -> list[Any]:
    if inspect.iscoroutine(said):
        said.close()
        raise ValueError(f"{who} returned a coroutine: make it a function without async, which returns {form}")
    if not isinstance(said, Iterable) or isinstance(said, str | bytes | bytearray | Mapping):
        what = "None" if said is None else f"a value of type {type(said).__name__}"
        raise ValueError(f"{who} returned {what}: return {form}")
    return list(said)


def _same_in_any_order(one: Sequence[Any], other: Sequence[Any]) -> bool:
    left = list(other)
    for item in one:
        place = next((place for place, twin in enumerate(left) if same(item, twin)), None)
        if place is None:
            return False
        del left[place]
    return not left
