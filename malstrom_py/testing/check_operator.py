"""``check_operator``: checks a step against all laws with generated cases, and shrinks a failing case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from malstrom_py.errors import OperatorError
from malstrom_py.testing.law_error import LawError
from malstrom_py.testing.laws import LAWS, Broken, Law, Scenario, StepUnderTest
from malstrom_py.testing.laws.oracle import ORACLE, PROMISE, Agreement, Oracle, OracleFailed
from malstrom_py.testing.laws.scenario import shrunk
from malstrom_py.testing.single_step import StreamFactory

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy


@dataclass(frozen=True, slots=True)
class LawReport:
    """Law -> the number of cases that tested it. 0: no case applied, for instance because the step has no state."""

    cases: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(f"{law:<24} {cases or 'nothing to test':>5}" for law, cases in self.cases.items())


def check_operator(
    factory: StreamFactory,
    *,
    keyed: bool = True,
    timed: bool = False,
    values: SearchStrategy[Any] | Sequence[Any] | None = None,
    keys: SearchStrategy[Any] | Sequence[Any] | None = None,
    inputs: int = 1,
    ticks: bool = False,
    types: Iterable[type] = (),
    laws: Iterable[str] | None = None,
    oracle: Oracle | None = None,
    in_order: bool = False,
    max_examples: int = 50,
    size_max: int = 12,
    seed: int | None = None,
) -> LawReport:
    """Check the step that ``factory`` makes of a stream against every law; `LawError` names the first broken one.

    ``factory``, ``keyed``, ``timed``, ``inputs`` and ``types`` are as in `OperatorTester`. ``values`` and ``keys``: a
    hypothesis strategy, or examples to pick from (by default whole numbers, and "a" to "d"). ``ticks``: also advance
    the clock, for steps with ``on_schedule``. ``laws``: only these, by name. ``max_examples``: the number of cases per
    law, each with at most ``size_max`` records and watermarks; they are the same each time, unless ``seed`` is given.

    ``oracle``: a function that returns the expected output, checked as one more law, "oracle", for any ``laws``. It is
    called once for each key with that key's records, a list of `DataMessage` in their order (on a stream without keys,
    or for a step that changes keys: once, with all records). It returns the expected values, or a `DataMessage` for
    each to compare keys and timestamps too. They may be in any order, unless ``in_order`` is set. Types count: 1 is not
    1.0, a tuple is not a list. With several ``inputs`` it takes one list for each; if the factory returns several
    streams, it returns one list for each.

    The factory is called for each instance of the step: make the logic inside the factory, do not share one.

    >>> def add(key, value, total):
    ...     return total + value, total + value
    >>> print(check_operator(lambda stream: stream.stateful_map("sum", add, default=int), max_examples=10))
    determinism              ...
    no mutation of inputs    ...
    state round trip         ...
    forwarding               ...
    epoch order              ...
    key kept                 ...
    batch-split invariance   ...
    key isolation            ...
    migration invariance     ...
    snapshot invariance      ...
    scale invariance         ...
    delta invariance         ...
    chain invariance         ...
    disk invariance          ...
    form invariance          ...
    >>> seen = {}
    >>> def leak(key, value, total):  # keeps its totals outside of the state
    ...     seen[key] = seen.get(key, 0) + value
    ...     return seen[key], None
    >>> check_operator(lambda stream: stream.stateful_map("sum", leak))
    Traceback (most recent call last):
    malstrom_py.testing.law_error.LawError: law 'determinism' is broken: the same input gives the same output, but ...
      input (key, value):
         0  ('a', 1)
         1  watermark MAX
      output 0, as (key, value, timestamp):
        expected  [('a', ..., None)]
        got       [('a', ..., None)]
    >>> def largest(rows):
    ...     return [max(row.value for row in rows[: n + 1]) for n in range(len(rows))]
    >>> check_operator(lambda stream: stream.max("max"), laws=["key kept"], oracle=largest, max_examples=10)
    LawReport(cases={'key kept': ..., 'oracle': ...})

    Raises:
        LawError: a law is broken; contains the smallest failing case and the expected output.
        ImportError: hypothesis is not installed.
        ValueError: a law does not exist, or the oracle does not return a list for each output of the step.
        Exception: the exception of the oracle; its notes contain the smallest input that causes it.
    """
    from malstrom_py.testing import strategies

    if keys is None and keyed:
        keys = strategies.keys()
    scenarios = strategies.scenarios(
        values=values, keys=keys if keyed else None, timed=timed, inputs=inputs, ticks=ticks, size_max=size_max
    )
    subject = StepUnderTest(factory, keyed=keyed, timed=timed, inputs=inputs, types=tuple(types))
    try:
        return _Search(subject, scenarios, max_examples, seed).hold([*_chosen(laws, oracle), *_held(oracle, in_order)])
    except OperatorError as error:
        if values is None:
            error.add_note("check_operator made these values, whole numbers: pass such as the step takes, values=[…]")
        raise


def _chosen(names: Iterable[str] | None, oracle: Oracle | None) -> list[Law]:
    wanted = [law.name for law in LAWS] if names is None else list(names)
    if ORACLE in wanted and oracle is None:
        raise ValueError(f"the law {ORACLE!r} needs a function that returns the expected output: pass it as oracle=")
    unknown = set(wanted) - {law.name for law in LAWS} - {ORACLE}
    if unknown:
        raise ValueError(f"{min(unknown)!r} is not a law; the laws are {', '.join(law.name for law in LAWS)}")
    return [law for law in LAWS if law.name in wanted]


def _held(oracle: Oracle | None, in_order: bool) -> list[Law]:
    """Return the law of the oracle, if one is given. It is the last law, because it relies on all others."""
    if oracle is None:
        return []
    if not callable(oracle):
        raise ValueError(f"oracle must be a function from records to the expected output, got {type(oracle).__name__}")
    return [Law(ORACLE, PROMISE, Agreement(oracle, in_order))]


class _Search:
    """The search for a scenario that breaks a law."""

    def __init__(
        self, subject: StepUnderTest, scenarios: SearchStrategy[Scenario], max_examples: int, seed: int | None
    ) -> None:
        self._subject = subject
        self._scenarios = scenarios
        self._max_examples = max_examples
        self._seed = seed

    def hold(self, laws: Sequence[Law]) -> LawReport:
        """Check the step against ``laws``. `LawError` for the first broken one."""
        # Each scenario is checked against all laws, which is far cheaper than one search per law.
        cases, failure = self._run(laws, shrink=False)
        if failure is None:
            return LawReport(cases)
        # A rarer scenario may break an earlier law, which the error should then name.
        names = [law.name for law in laws]
        broken = names.index(failure.law) if failure.law in names else 0
        while broken:
            _, earlier = self._run(laws[:broken], shrink=False)
            if earlier is None or earlier.law not in names[:broken]:
                break
            failure, broken = earlier, names.index(earlier.law)
        _, smaller = self._run([laws[broken]], shrink=True)
        failure = smaller or failure
        if isinstance(failure, OracleFailed):
            raise failure.noted()
        raise failure.with_traceback(None) from failure.__cause__

    def _run(self, laws: Sequence[Law], *, shrink: bool) -> tuple[dict[str, int], LawError | None]:
        """Search once; return law -> the number of cases that tested it, and the smallest failure."""
        cases = dict.fromkeys((law.name for law in laws), 0)
        failures: list[tuple[int, Scenario, LawError]] = []

        def holds(scenario: Scenario) -> None:
            for law in laws:
                try:
                    cases[law.name] += _hold(law, self._subject, scenario)
                except LawError as error:
                    failures.append((len(scenario.atoms) + len(scenario.cuts), scenario, error))
                    raise

        try:
            self._test(holds, shrink=shrink)()
        except Exception:
            # hypothesis reports a step with random results as flaky: the failure counts.
            if not failures:
                raise
        if not failures:
            return cases, None
        # The last of the smallest failures is the one with which hypothesis ends, also for random results.
        smallest = min(size for size, _, _ in failures)
        scenario, failure = [(scenario, error) for size, scenario, error in failures if size == smallest][-1]
        failure = (shrink and self._smallest(laws[0], scenario, failure)) or failure
        failure.__notes__ = []  # the notes of hypothesis repeat the case
        return cases, failure

    def _smallest(self, law: Law, scenario: Scenario, broken: LawError) -> LawError | None:
        """Shrink ``scenario`` and return the error of the smallest one that fails as ``broken`` does."""
        last: LawError | None = None

        def breaks(smaller: Scenario) -> bool:
            nonlocal last
            try:
                _hold(law, self._subject, smaller)
            except LawError as error:
                if _alike(error, broken):
                    last = error
                    return True
            return False

        shrunk(scenario, breaks)
        return last

    def _test(self, holds: Callable[[Scenario], None], *, shrink: bool) -> Callable[[], None]:
        from hypothesis import HealthCheck, Phase, given, seed, settings

        test = settings(
            max_examples=self._max_examples,
            database=None,
            deadline=None,
            derandomize=self._seed is None,
            phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
            suppress_health_check=[check for check in HealthCheck if isinstance(check, HealthCheck)],
            report_multiple_bugs=False,
            print_blob=False,
        )(given(self._scenarios)(holds))
        return test if self._seed is None else seed(self._seed)(test)


def _alike(one: LawError, other: LawError) -> bool:
    """Return whether both break the same law in the same way: a wrong oracle differs from one that raises."""
    failed = [type(error.error) if isinstance(error, OracleFailed) else None for error in (one, other)]
    return one.law == other.law and failed[0] is failed[1]


def _hold(law: Law, subject: StepUnderTest, scenario: Scenario) -> bool:
    try:
        return law.check(subject, scenario, _broken(law, subject, scenario))
    except OperatorError as error:
        rule = next((other for other in LAWS if other.name == error.rule), None)
        if rule is not None:
            raise _broken(rule, subject, scenario)(f"  {error}") from error
        error.add_note(scenario.shown(keyed=subject.keyed, timed=subject.timed, marks={}))
        raise


def _broken(law: Law, subject: StepUnderTest, scenario: Scenario) -> Broken:
    return Broken(law.name, law.promise, subject, scenario)
