"""The law of forwarding: control messages pass every step once, in order, an epoch behind its outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from malstrom_py.messages import (
    MAX_EPOCH,
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
from malstrom_py.testing.laws.play import Broken, Play, Subject
from malstrom_py.testing.laws.scenario import Scenario
from malstrom_py.testing.persistence import CapturingPersistenceBackend
from malstrom_py.testing.tester import OperatorTester


def forwarding(subject: Subject, scenario: Scenario, broken: Broken) -> bool:
    """Each control message comes out of each output exactly once, nothing else with it."""
    play = Play(subject, scenario, cuts=scenario.cuts)
    instance = play.build()
    if not instance.lone.outputs:
        return False
    _epochs(play, instance, 0, scenario.at, broken)
    marks = {scenario.at: "here"}
    for message in _control_messages(subject, scenario):
        instance.send_local(message).step()
        for number, (name, _) in enumerate(instance.lone.outputs):
            got = instance.receive_local(number)
            ends_here = subject.generates or instance.lone.crosses(name)
            expected = not (isinstance(message, PartMessage) and ends_here)
            if not _is_as_expected(message, got, expected=expected, generates=subject.generates):
                shown = "the message, once" if expected else "nothing, for parts end at generate_epochs and key_by"
                what = f"  {type(message).__name__} sent; output {number}:"
                raise broken(f"{what}\n    expected  {shown}\n    got       {got}", marks)
    if scenario.at < len(scenario.atoms):
        # Behind a suspension nothing comes, so the rest goes to an instance that was not suspended.
        play = Play(subject, scenario, cuts=scenario.cuts)
        _epochs(play, play.build(), 0, len(scenario.atoms), broken)
    return True


def _control_messages(subject: Subject, scenario: Scenario) -> Iterator[Any]:
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
    # A suspension is the worker's own, made where that of the coordinator or of another worker has come.
    if isinstance(message, SuspendMarker):
        return got == [message]
    return len(got) == 1 and got[0] is message


def _epochs(play: Play, instance: OperatorTester, start: int, end: int, broken: Broken) -> None:
    """Play the scenario; each epoch must come out once and last."""
    generates = play.subject.generates
    for piece in play.scenario.pieces(start, end, play.scenario.cuts):
        play.deliver(piece, [instance])
        for number, (name, _) in enumerate(instance.lone.outputs):
            got = instance.receive_local(number)
            sent = [piece.event] if isinstance(piece.event, Epoch) and _carries(instance, name, piece.event) else []
            control = [message for message in got if not isinstance(message, DataMessage)]
            if generates:
                control = [message for message in control if message == Epoch(MAX_EPOCH)]
                sent = [epoch for epoch in sent if epoch.time == MAX_EPOCH]
            if control != sent or (sent and got[-1] != sent[0]):
                what = f"  output {number}:\n    expected  {sent}, behind the records\n    got       {got}"
                raise broken(what, {piece.first: "here"})


def _carries(instance: OperatorTester, name: str, epoch: Epoch) -> bool:
    """Whether the port that an output records carries ``epoch``."""
    plan = instance.lone.plan
    ref = plan.steps[plan.rank(name)].inputs[0]
    return epoch.time == MAX_EPOCH or plan.steps[plan.rank(ref.step)].ports[ref.port].epochs
