"""Messages: small, immutable, compared by value."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable

import cloudpickle
import pytest

from malstrom_py.data.messages import (
    MAX_EPOCH,
    MIN_EPOCH,
    AbsBarrier,
    Acquire,
    AnyOf,
    Collect,
    DataMessage,
    DeadLetter,
    Epoch,
    Interrogate,
    PartFinished,
    PartOpened,
    PartQuiet,
    PartReleased,
    Rescale,
    SuspendMarker,
    every_key,
)
from malstrom_py.testing import CapturingPersistenceBackend

MESSAGES = [
    DataMessage("a", 1, 2),
    Epoch(5),
    PartOpened("p", {"epoch": 5}),
    PartReleased("p", {"epoch": 5}),
    PartFinished("p"),
    PartQuiet("p", 0.5),
    Interrogate(every_key, {"a"}),
    Interrogate(AnyOf({"a", "b"})),
    Collect({"a", "b"}, {"total": b"state"}),
    Collect({"x": None, "y": None}.keys(), {"total": b"state"}),
    Acquire({"total": b"state"}),
    AbsBarrier("20261122T042242123456Z-1a2b3c4d", CapturingPersistenceBackend(), "20261122T042241123456Z-1a2b3c4d", 2),
    Rescale(2, (0, 1, 0)),
    SuspendMarker(),
    DeadLetter("step", "a", 1, 2, "ValueError: no"),
]
FROZEN = [message for message in MESSAGES if not isinstance(message, DataMessage | SuspendMarker)]


@pytest.mark.parametrize("message", FROZEN, ids=lambda message: type(message).__name__)
def test_a_message_cannot_be_changed(message: object) -> None:
    field = dataclasses.fields(message)[0].name  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, field, "other")
    assert not hasattr(message, "__dict__")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_equal_when_they_say_the_same(message: object) -> None:
    assert dataclasses.replace(message) == message  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_equals_the_one_that_was_sent_to_another_process(message: object) -> None:
    received = cloudpickle.loads(cloudpickle.dumps(message))
    assert received is not message
    assert received == message
    assert len([other for other in MESSAGES if other == received]) == 1
    if not isinstance(message, PartOpened):
        assert hash(received) == hash(message)


@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.copy, copy.deepcopy])
def test_the_order_of_the_keys_of_a_dict_survives_a_copy(copied: Callable[[Collect], Collect]) -> None:
    names = [f"key {number}" for number in range(100)]
    received = copied(Collect(dict.fromkeys(names).keys(), {"total": b"state"}))
    assert list(received.keys) == names
    assert received.states == {"total": b"state"}
    assert type(copied(Collect(frozenset(names))).keys) is frozenset


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Interrogate(), Interrogate(keys={"a"})),
        (Interrogate(), Interrogate(AnyOf({"a"}))),
        (Interrogate(AnyOf({"a"})), Interrogate(AnyOf({"b"}))),
        (Collect({"a"}), Collect({"b"})),
        (Collect({"a"}), Collect({"a"}, {"total": b""})),
        (Acquire({}), Acquire({"total": b""})),
        (AbsBarrier("one", CapturingPersistenceBackend()), AbsBarrier("two", CapturingPersistenceBackend())),
        (AbsBarrier("one", CapturingPersistenceBackend()), AbsBarrier("one", CapturingPersistenceBackend(), "zero")),
        (AbsBarrier("one", CapturingPersistenceBackend()), AbsBarrier("one", CapturingPersistenceBackend(), None, 2)),
        (Rescale(1, (0, 1)), Rescale(2, (0, 1))),
        (Rescale(1, (0, 1)), Rescale(1, (1, 0))),
        (PartReleased("p"), PartReleased("p", {"epoch": 5})),
        (SuspendMarker(), Epoch(MAX_EPOCH)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_that_say_something_else_are_not_equal(one: object, other: object) -> None:
    assert one != other


def test_a_record_of_an_untimed_stream_has_no_timestamp() -> None:
    assert DataMessage("a", 1).timestamp is None


def test_the_limits_are_those_of_an_int64() -> None:
    assert (MIN_EPOCH, MAX_EPOCH) == (-(2**63), 2**63 - 1)
