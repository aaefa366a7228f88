"""Messages: small, immutable, compared by what they say."""

from __future__ import annotations

import dataclasses

import pytest

from malstrom_py.messages import MAX_EPOCH, MIN_EPOCH, DataMessage, DeadLetter, Epoch, PartFinished, PartOpened

MESSAGES = [
    DataMessage("a", 1, 2),
    Epoch(5),
    PartOpened("p", {"epoch": 5}),
    PartFinished("p"),
    DeadLetter("step", "a", 1, 2, "ValueError: no"),
]


@pytest.mark.parametrize("message", MESSAGES[1:], ids=lambda message: type(message).__name__)
def test_a_message_cannot_be_changed(message: object) -> None:
    field = dataclasses.fields(message)[0].name  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(message, field, "other")
    assert not hasattr(message, "__dict__")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_messages_are_equal_when_they_say_the_same(message: object) -> None:
    assert dataclasses.replace(message) == message  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]


def test_a_record_of_an_untimed_stream_has_no_timestamp() -> None:
    assert DataMessage("a", 1).timestamp is None


def test_the_limits_are_those_of_an_int64() -> None:
    assert (MIN_EPOCH, MAX_EPOCH) == (-(2**63), 2**63 - 1)
