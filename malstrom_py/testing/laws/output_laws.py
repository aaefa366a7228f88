"""The laws of the output of a step: records, epochs and control messages.

The output is the same in every run and for every cutting of the input, keys do not affect each other, epochs order the
records, and control messages pass once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    Acquire,
    Collect,
    DataMessage,
    Epoch,
    Interrogate,
    PartFinished,
    PartMessage,
    PartOpened,
    Rescale,
    SuspendMarker,
)
from malstrom_py.testing.exact import NO_MUTATION
from malstrom_py.testing.law_error import LawError
from malstrom_py.testing.laws.scenario import (
    Broken,
    Scenario,
    ScenarioRun,
    StepUnderTest,
    baseline,
    received,
)
from malstrom_py.testing.tester import CapturingPersistenceBackend, OperatorTester

REKEYING = frozenset(("key_by", "key_local", "flat"))
"""Kinds of steps that change the keys of records, or leave them out."""


def determinism(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that two new instances give the same output, record by record."""
    first = baseline(subject, scenario, cuts=scenario.cuts, keyed=False)
    second = baseline(subject, scenario, cuts=scenario.cuts, keyed=False)
    broken.unless_same(first, second, why="a second run gives another output")
    return len(first) > 0


def no_mutation(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that received and sent values do not change afterwards."""
    play = ScenarioRun(subject, scenario, cuts=scenario.cuts)
    try:
        play.run([play.build(watched=True)])
    except LawError as error:
        if error.law != NO_MUTATION:
            raise
        raise broken(error.case, why=error.what.partition(", but ")[2]) from None
    return True


def epoch_order(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that no record is at or below a forwarded watermark, and that none decreases or overtakes the input."""
    play = ScenarioRun(subject, scenario, cuts=scenario.cuts)
    instance = play.build()
    passed = [MIN_EPOCH] * len(instance.single.outputs)
    promised = MIN_EPOCH
    for delivery in scenario.deliveries(0, len(scenario.atoms), scenario.cuts):
        marks = {delivery.first: "here"}
        if isinstance(delivery.event, Epoch):
            promised = delivery.event.time
        play.deliver(delivery, [instance])
        for output in range(len(passed)):
            for message in instance.receive_local(output):
                last = passed[output]
                if isinstance(message, DataMessage) and message.timestamp is not None and message.timestamp <= last:
                    raise broken(f"  output {output}: {message} came after watermark {last}", marks)
                if not isinstance(message, Epoch):
                    continue
                if message.time <= last or (message.time > promised and not subject.generates):
                    raise broken(f"  output {output}: {message} after watermark {last}, the input at {promised}", marks)
                passed[output] = message.time
    return any(epoch > MIN_EPOCH for epoch in passed)


def key_kept(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that a record's outputs have its key, and those of timers and epochs the key of an earlier record."""
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    play = ScenarioRun(subject, scenario)
    instance = play.build()
    seen: set[object] = set()
    for delivery in scenario.deliveries(0, len(scenario.atoms), range(len(scenario.atoms))):
        marks = {delivery.first: "here"}
        play.deliver(delivery, [instance])
        keys = {row.key for row in delivery.rows}
        seen |= keys
        for output, records in received(instance).items():
            for key, value, _ in records:
                if key not in (keys or seen):
                    raise broken(f"  {output}: value {value!r} came out under key {key!r}", marks)
    return bool(seen)


def batch_split(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that any cutting of the input gives the same output per key."""
    expected = baseline(subject, scenario, cuts=())
    rows = [place for place, atom in enumerate(scenario.atoms) if isinstance(atom, DataMessage)]
    for cuts in (scenario.cuts, frozenset(rows)):
        marks = {place: "a batch ends here" for place in sorted(cuts) if place and place in rows}
        got = baseline(subject, scenario, cuts=cuts)
        broken.unless_same(expected, got, marks, where="with the rows between two events in one batch")
    return len(rows) > 1


def key_isolation(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that the output of a key depends on the records of that key only."""
    if not subject.keyed or subject.kinds & REKEYING:
        return False
    together = baseline(subject, scenario, cuts=scenario.cuts, keyed=True)
    for key in scenario.keys:
        play = ScenarioRun(subject, scenario, cuts=scenario.cuts)
        play.run([play.build()], owner=partial(_only, key))
        where = f"with the records of key {key!r} alone"
        broken.unless_same(play.trace.of_key(key), together.of_key(key), where=where)
    return len(scenario.keys) > 1


def _only(wanted: Any, key: Any) -> int | None:
    return 0 if key == wanted else None


def forwarding(subject: StepUnderTest, scenario: Scenario, broken: Broken) -> bool:
    """Check that each control message leaves each output exactly once, and causes no other message."""
    play = ScenarioRun(subject, scenario, cuts=scenario.cuts)
    instance = play.build()
    if not instance.single.outputs:
        return False
    _epochs(play, instance, 0, scenario.at, broken)
    marks = {scenario.at: "here"}
    for message in _control_messages(subject, scenario):
        instance.send_local(message).step()
        for number, (name, _) in enumerate(instance.single.outputs):
            got = instance.receive_local(number)
            ends_here = subject.generates or instance.single.crosses(name)
            expected = not (isinstance(message, PartMessage) and ends_here)
            if not _is_as_expected(message, got, expected=expected, generates=subject.generates):
                shown = "the message, once" if expected else "nothing, for parts end at generate_epochs and key_by"
                what = f"  {type(message).__name__} sent; output {number}:"
                raise broken(f"{what}\n    expected  {shown}\n    got       {got}", marks)
    if scenario.at < len(scenario.atoms):
        # A suspension is the last message, so another instance processes the rest.
        play = ScenarioRun(subject, scenario, cuts=scenario.cuts)
        _epochs(play, play.build(), 0, len(scenario.atoms), broken)
    return True


def _control_messages(subject: StepUnderTest, scenario: Scenario) -> Iterator[Any]:
    if not subject.keyed:
        yield from (PartOpened("another"), PartFinished("another"))
    yield Interrogate(lambda key: True)
    yield Collect(frozenset(scenario.keys))
    yield Acquire({})
    yield Rescale(2, (0,))
    yield AbsBarrier("forwarded", CapturingPersistenceBackend())
    yield SuspendMarker()


def _is_as_expected(message: Any, got: list[Any], *, expected: bool, generates: bool) -> bool:
    if generates:
        got = [other for other in got if not isinstance(other, Epoch)]
    if not expected:
        return not got
    # The worker makes a new marker when it receives one of the coordinator or of another worker.
    if isinstance(message, SuspendMarker):
        return got == [message]
    return len(got) == 1 and got[0] is message


def _epochs(play: ScenarioRun, instance: OperatorTester, start: int, end: int, broken: Broken) -> None:
    """Run the scenario and check that each epoch is forwarded once, after its records."""
    generates = play.subject.generates
    for delivery in play.scenario.deliveries(start, end, play.scenario.cuts):
        play.deliver(delivery, [instance])
        for number, (name, _) in enumerate(instance.single.outputs):
            got = instance.receive_local(number)
            epoch = delivery.event if isinstance(delivery.event, Epoch) else None
            sent = [epoch] if epoch is not None and _carries(instance, name, epoch) else []
            control = [message for message in got if not isinstance(message, DataMessage)]
            if generates:
                control = [message for message in control if message == Epoch(MAX_EPOCH)]
                sent = [one for one in sent if one.time == MAX_EPOCH]
            if control != sent or (sent and got[-1] != sent[0]):
                what = f"  output {number}:\n    expected  {sent}, after the records\n    got       {got}"
                raise broken(what, {delivery.first: "here"})


def _carries(instance: OperatorTester, name: str, epoch: Epoch) -> bool:
    """Return whether the recorded port of an output carries ``epoch``."""
    plan = instance.single.plan
    ref = plan.steps[plan.rank(name)].inputs[0]
    return epoch.time == MAX_EPOCH or plan.steps[plan.rank(ref.step)].ports[ref.port].epochs
