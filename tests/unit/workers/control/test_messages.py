"""Messages of control sockets: they survive a round trip, and all other input is a typed error."""

from __future__ import annotations

import math

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.data.messages import MAX_EPOCH
from malstrom_py.errors import (
    ControlError,
    JobEnded,
    JobNotFound,
    MalformedRecord,
    MalstromError,
    OperationInProgress,
    OperatorError,
)
from malstrom_py.workers.control import messages as control_messages
from malstrom_py.workers.control.messages import (
    ANSWER_BYTES_MAX,
    LENGTH_BYTES,
    PROTOCOL,
    REQUEST_BYTES_MAX,
    Accepted,
    Answer,
    Command,
    ControlRequest,
    RescaleCommand,
    SnapshotCommand,
    SnapshotMade,
    StatusCommand,
    StopCommand,
    WaitCommand,
    Waiting,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    length_of,
)
from malstrom_py.workers.reports.job_status import JobStatus, Moving, RescaleReport, SnapshotStatus
from malstrom_py.workers.reports.result import RunResult, StepCounts

COUNT = st.integers(0, 1 << 40)
SECONDS = st.floats(0, 1e8)
STEPS = st.builds(
    StepCounts,
    kind=st.text(max_size=10),
    rows_in=COUNT,
    ports=st.dictionaries(st.text(max_size=10), COUNT, max_size=3),
    late=COUNT,
    keys=st.none() | COUNT,
    epoch=st.none() | st.integers(-(1 << 63), MAX_EPOCH),
)
RESULTS = st.builds(
    RunResult,
    job=st.text(max_size=64),
    steps=st.dictionaries(st.text(max_size=64), STEPS, max_size=3),
    duration_s=SECONDS,
    snapshots=COUNT,
)
STATUSES = st.builds(
    JobStatus,
    job=st.text(max_size=64),
    state=st.sampled_from(["running", "rescaling", "recovering", "stopping", "finished", "failed", "stopped"]),
    workers=st.integers(0, 128),
    phase=st.text(max_size=10),
    counts=RESULTS,
    error=st.none() | st.text(max_size=50),
    age_s=SECONDS,
    moving=st.none() | st.builds(Moving, COUNT, COUNT, COUNT, COUNT, COUNT),
    restarts=COUNT,
    snapshots=st.none() | st.builds(SnapshotStatus, st.none() | st.text(max_size=40), st.none() | SECONDS, COUNT),
)
REPORTS = st.builds(
    RescaleReport,
    members=st.lists(st.integers(0, 1 << 20), max_size=5).map(tuple),
    version=COUNT,
    moves=COUNT,
    slots=COUNT,
    parts=COUNT,
    duration_s=SECONDS,
    superseded_by=st.none() | st.integers(1, 128),
    keys=COUNT,
    bytes=COUNT,
)
MADE = st.builds(SnapshotMade, st.text(max_size=40))
ASKS: st.SearchStrategy[Command] = st.one_of(
    st.builds(StatusCommand, SECONDS),
    st.builds(RescaleCommand, st.integers(1, 128), st.booleans(), SECONDS),
    st.builds(SnapshotCommand, st.none() | st.text(max_size=1000), SECONDS),
    st.builds(StopCommand, st.booleans(), st.booleans(), SECONDS),
    st.builds(WaitCommand, st.none() | SECONDS),
)


def framed(message: object) -> bytes:
    payload: bytes = msgpack.packb(message) or b""
    return payload


@given(ask=ASKS, token=st.text(max_size=100))
def test_a_request_comes_as_it_went(ask: Command, token: str) -> None:
    frame = encode_request(ControlRequest(token, ask))
    assert length_of(frame[:LENGTH_BYTES], REQUEST_BYTES_MAX) == len(frame) - LENGTH_BYTES
    assert decode_request(frame[LENGTH_BYTES:]) == ControlRequest(token, ask)


@given(answer=st.one_of(RESULTS, STATUSES, REPORTS, MADE, st.just(Waiting()), st.just(Accepted())))
def test_an_answer_comes_as_it_went(answer: Answer) -> None:
    assert decode_answer(encode_answer(answer)[LENGTH_BYTES:]) == answer


@pytest.mark.parametrize(
    "error",
    [
        JobEnded("it has", job="a", how="failed"),
        OperationInProgress("it continues", job="a", operation="stop"),
        JobNotFound("there is none", job="a", running=("b", "c")),
        OperatorError("step 'b' failed", step="b", function="f at job.py:3", rule="key kept"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_with_type_text_notes_and_what_it_tells(error: MalstromError) -> None:
    error.add_note("and that")
    copy = decode_answer(encode_answer(error)[LENGTH_BYTES:])
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_an_error_takes_no_data_of_users_along() -> None:
    for error in (OperatorError("failed", key="secret-4711"), MalformedRecord("line 3", record="secret-4711")):
        frame = encode_answer(error)
        assert b"secret-4711" not in frame
        assert type(decode_answer(frame[LENGTH_BYTES:])) is type(error)


def test_a_path_that_is_no_text_does_not_keep_an_error_from_being_told() -> None:
    error = decode_answer(encode_answer(MalformedRecord("in \udcff.csv"))[LENGTH_BYTES:])
    assert str(error) == "in ?.csv"


def test_an_error_of_no_kind_that_is_known_here_is_a_control_error() -> None:
    for kind in ("Future", "shown", "Final", "__doc__", 3, None, ["PlanError"]):
        error = decode_answer(framed({"error": {"type": kind, "text": "later"}}))
        assert (type(error), str(error)) == (ControlError, "later")


def test_attributes_of_another_type_or_name_are_left() -> None:
    attributes = {"job": 5, "running": "b", "how": "failed", "args": ["x"], "__class__": "y"}
    error = decode_answer(framed({"error": {"type": "JobNotFound", "text": "t", "attributes": attributes, "notes": 3}}))
    assert vars(error) == {"job": "", "running": ()}


@given(payload=st.binary(max_size=200))
def test_bytes_that_are_no_message_are_a_typed_error(payload: bytes) -> None:
    for decode in (decode_request, decode_answer):
        try:
            decode(payload)
        except ControlError:
            continue


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(
    kind=st.sampled_from(["waiting", "done", "snapshot", "status", "report", "result", "error", "other"]), inside=PLAIN
)
def test_messages_of_the_wrong_shape_are_a_typed_error(kind: str, inside: object) -> None:
    try:
        decode_answer(framed({kind: inside}))
    except ControlError:
        return
    assert kind in {"waiting", "done"}, "these have no fields that could be wrong"


@given(status=STATUSES, data=st.data())
def test_one_field_of_the_wrong_type_is_a_typed_error(status: JobStatus, data: st.DataObject) -> None:
    message = msgpack.unpackb(encode_answer(status)[LENGTH_BYTES:], strict_map_key=False)
    field = data.draw(st.sampled_from(sorted(message["status"])))
    message["status"][field] = data.draw(st.sampled_from([b"bytes", [["list"]], {"a": {}}, math.nan]))
    with pytest.raises(ControlError):
        decode_answer(framed(message))


@given(asked=st.data())
def test_a_request_is_checked_field_by_field(asked: st.DataObject) -> None:
    given_with = asked.draw(PLAIN)
    name = asked.draw(st.sampled_from(["status", "rescale", "snapshot", "stop", "wait"]) | PLAIN)
    token = asked.draw(st.text(max_size=3) | PLAIN)
    try:
        request = decode_request(framed({"protocol": PROTOCOL, "token": token, "ask": name, "with": given_with}))
    except ControlError:
        return
    assert isinstance(request.token, str)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ([], "a message must be a map"),
        ({"protocol": 2}, "another version"),
        ({"protocol": PROTOCOL}, "must have a token"),
        (
            {"protocol": PROTOCOL, "token": "t", "ask": "run"},
            "one of the commands status, rescale, snapshot, stop, wait",
        ),
        ({"protocol": PROTOCOL, "token": "t", "ask": "wait"}, "must be a map"),
        ({"protocol": PROTOCOL, "token": "t", "ask": "wait", "with": {}}, "lacks a field"),
        ({"protocol": PROTOCOL, "token": "t", "ask": "wait", "with": {"timeout_s": -1}}, "a timeout must be from 0"),
        ({"protocol": PROTOCOL, "token": "t", "ask": "wait", "with": {"timeout_s": 1e9}}, "a timeout must be from 0"),
        ({"protocol": PROTOCOL, "token": "t", "ask": "wait", "with": {"timeout_s": True}}, "of the wrong type"),
        ({"protocol": PROTOCOL, "token": "t", "ask": "wait", "with": {"timeout_s": math.inf}}, "of the wrong type"),
    ],
    ids=repr,
)
def test_a_wrong_request_is_told_what_is_wrong(message: object, said: str) -> None:
    with pytest.raises(ControlError, match=said):
        decode_request(framed(message))


def test_what_a_later_version_adds_is_left() -> None:
    message = msgpack.unpackb(encode_answer(RescaleReport((0,), 1, 1, 1, 1, 1.0))[LENGTH_BYTES:])
    message["report"]["colour"] = "green"
    assert decode_answer(framed(message)) == RescaleReport((0,), 1, 1, 1, 1, 1.0)


@pytest.mark.parametrize("payload", [b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", b"\xc7\xff\x05" + b"x" * 255, b"\xc1"])
def test_bombs_do_not_go_off(payload: bytes) -> None:
    with pytest.raises(ControlError, match=r"is not msgpack|must be a map"):
        decode_request(payload)


@pytest.mark.parametrize("length", [0, REQUEST_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_frame_without_or_beyond_measure_is_refused_by_its_head(length: int) -> None:
    with pytest.raises(ControlError, match="are allowed"):
        length_of(length.to_bytes(4, "big"), REQUEST_BYTES_MAX)


def test_an_answer_beyond_measure_becomes_the_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_messages, "ANSWER_BYTES_MAX", 100)
    answer = decode_answer(encode_answer(RunResult("a" * 100, {}, 0.0))[LENGTH_BYTES:])
    assert "larger than 100 bytes" in str(answer)


def test_the_counts_of_ten_thousand_steps_are_within_measure() -> None:
    step = StepCounts("map", 1 << 40, {"out": 1 << 40, "dead_letters": 1 << 40}, keys=1 << 40, epoch=MAX_EPOCH)
    result = RunResult("a" * 64, {f"{number:064}": step for number in range(10_000)}, 1.0)
    assert len(encode_answer(result)) < ANSWER_BYTES_MAX
    assert decode_answer(encode_answer(result)[LENGTH_BYTES:]) == result
