"""Messages of control sockets: they survive a round trip, and all other input is a typed error."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

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
from malstrom_py.rescale.autoscaling import Autoscale
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.snapshots import Snapshots
from malstrom_py.workers.control import messages as control_messages
from malstrom_py.workers.control.messages import (
    ANSWER_BYTES_MAX,
    LENGTH_BYTES,
    PROTOCOL,
    REQUEST_BYTES_MAX,
    WAITING,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
    length_of,
)
from malstrom_py.workers.reports.commands import (
    AutoscaleCommand,
    Command,
    RescaleCommand,
    Result,
    SnapshotCommand,
    StateCommand,
    StatusCommand,
    StopCommand,
    WaitCommand,
)
from malstrom_py.workers.reports.job_state import Figure, JobState, StateShape
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
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(StatusCommand, SECONDS),
    st.builds(RescaleCommand, st.integers(1, 128), st.booleans(), SECONDS),
    st.builds(SnapshotCommand, st.none() | st.text(min_size=1, max_size=1000), SECONDS),
    st.builds(StopCommand, st.booleans(), st.booleans(), SECONDS),
    st.builds(WaitCommand, st.none() | SECONDS),
    st.builds(StateCommand, SECONDS),
)


def framed(message: object) -> bytes:
    payload: bytes = msgpack.packb(message) or b""
    return payload


@given(command=COMMANDS, token=st.text(max_size=100))
def test_a_request_comes_as_it_went(command: Command, token: str) -> None:
    frame = encode_request(command, token)
    assert length_of(frame[:LENGTH_BYTES], REQUEST_BYTES_MAX) == len(frame) - LENGTH_BYTES
    request = decode_request(frame[LENGTH_BYTES:])
    assert (request.command, request.token) == (command, token)


def decoded(answer: Result | MalstromError, command: Command) -> Result:
    return decode_answer(encode_answer(answer)[LENGTH_BYTES:]).result(command, "a")


def test_where_the_state_is_comes_without_what_only_the_program_of_the_job_has() -> None:
    shape = StateShape("value", ("room",), (Figure("n", "count"), Figure("mean", "mean", 1, skips=True)))
    state = JobState(
        "a", {"means": shape, "visits": StateShape("session", span=5, unit="s")}, "/kept", "", Snapshots("/kept")
    )
    assert decoded(state, StateCommand(1)) == replace(state, snapshots=None)


def decoded_error(error: MalstromError) -> MalstromError:
    with pytest.raises(MalstromError) as raised:
        decoded(error, WaitCommand(None))
    return raised.value


@given(result=RESULTS, status=STATUSES, report=REPORTS)
def test_an_answer_comes_as_it_went(result: RunResult, status: JobStatus, report: RescaleReport) -> None:
    assert decoded(result, WaitCommand(None)) == result
    assert decoded(status, StatusCommand(1)) == status
    assert decoded(report, RescaleCommand(2, True, 1)) == report
    assert decoded(None, RescaleCommand(2, False, 1)) is None
    assert decoded(SnapshotId("s1"), SnapshotCommand(None, 1)) == decoded(SnapshotId("s1"), StopCommand(None, True, 1))
    assert decoded(None, StopCommand(None, True, 1)) is None
    assert decoded(None, AutoscaleCommand(None, 1)) is None
    assert decode_answer(WAITING[LENGTH_BYTES:]).waiting


@pytest.mark.parametrize("command", [StatusCommand(1), RescaleCommand(2, True, 1), SnapshotCommand(None, 1)], ids=repr)
def test_an_answer_to_another_command_is_a_typed_error(command: Command) -> None:
    with pytest.raises(ControlError, match=f"did not answer what it was asked .{command.operation}"):
        decoded(RunResult("a", {}, 0.0), command)


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
    copy = decoded_error(error)
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_an_error_takes_no_data_of_users_along() -> None:
    for error in (OperatorError("failed", key="secret-4711"), MalformedRecord("line 3", record="secret-4711")):
        assert b"secret-4711" not in encode_answer(error)
        assert type(decoded_error(error)) is type(error)


def test_a_path_that_is_not_unicode_does_not_keep_an_error_from_its_client() -> None:
    assert str(decoded_error(MalformedRecord("in \udcff.csv"))) == "in ?.csv"
    status = decoded(JobStatus("a", "failed", 1, "ended", RunResult("a", {}, 0.0), "in \udcff"), StatusCommand(1))
    assert isinstance(status, JobStatus)
    assert status.error == "in ?"
    with pytest.raises(ControlError, match="is not unicode"):
        encode_request(SnapshotCommand("/\udcff", 1))


def error_in(**fields: object) -> MalstromError:
    with pytest.raises(MalstromError) as raised:
        decode_answer(framed({"error": {"text": "later", **fields}})).result(WaitCommand(None), "a")
    return raised.value


def test_an_error_of_no_kind_that_is_known_here_is_a_control_error() -> None:
    for kind in ("Future", "shown", "Final", "__doc__", ""):
        error = error_in(type=kind)
        assert (type(error), str(error)) == (ControlError, "later")


def test_attributes_of_another_type_or_name_are_left() -> None:
    attributes = {"job": 5, "running": "b", "how": "failed", "args": ["x"], "__class__": "y"}
    assert vars(error_in(type="JobNotFound", attributes=attributes)) == {"job": "", "running": ()}


@given(payload=st.binary(max_size=200))
def test_bytes_that_are_no_message_are_a_typed_error(payload: bytes) -> None:
    for decode in (decode_request, decode_answer):
        with contextlib.suppress(ControlError):
            decode(payload)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


@given(kind=st.sampled_from(["status", "report", "run", "snapshot", "error"]), inside=PLAIN)
def test_messages_of_the_wrong_shape_are_a_typed_error(kind: str, inside: object) -> None:
    try:
        decode_answer(framed({kind: inside}))
    except ControlError:
        return
    assert inside is None or kind == "snapshot", "these have no fields that could be wrong"


@given(status=STATUSES, data=st.data())
def test_one_field_of_the_wrong_type_is_a_typed_error(status: JobStatus, data: st.DataObject) -> None:
    message = msgpack.unpackb(encode_answer(status)[LENGTH_BYTES:], strict_map_key=False)
    field = data.draw(st.sampled_from(sorted(message["status"])))
    message["status"][field] = data.draw(st.sampled_from([b"bytes", [["list"]], {"a": {}}]))
    with pytest.raises(ControlError):
        decode_answer(framed(message))


@given(asked=st.data())
def test_a_request_is_checked_field_by_field(asked: st.DataObject) -> None:
    command = {"type": asked.draw(st.sampled_from(["status", "rescale", "snapshot", "stop", "wait"]) | PLAIN)}
    command |= asked.draw(st.dictionaries(st.sampled_from(["size", "wait", "drain", "uri", "timeout_s"]), PLAIN))
    with contextlib.suppress(ControlError):
        decode_request(framed({"protocol": PROTOCOL, "token": asked.draw(PLAIN), "command": command}))


def request(**command: object) -> dict[str, object]:
    return {"protocol": PROTOCOL, "token": "t", "command": command}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ([], "Expected `object`, got `array`"),
        ({"protocol": PROTOCOL + 1}, "another version"),
        ({"protocol": PROTOCOL}, "missing required field `token`"),
        (request(type="run"), r"Invalid value 'run' - at `\$.command.type`"),
        (request(type="wait"), "missing required field `timeout_s`"),
        (request(type="wait", timeout_s=1.0, more=1), "contains unknown field `more`"),
        (request(type="wait", timeout_s=-1.0), r"`float` >= 0.0"),
        (request(type="wait", timeout_s=1e9), r"`float` <= 100000000.0"),
        (request(type="wait", timeout_s=True), "Expected `float | null`, got `bool`"),
        (request(type="wait", timeout_s=math.inf), r"`float` <= 100000000.0"),
        (request(type="rescale", size=129, wait=True, timeout_s=1), r"`int` <= 128"),
        (request(type="rescale", size=2, wait=1, timeout_s=1), "Expected `bool`, got `int`"),
        (request(type="snapshot", uri="x" * 2001, timeout_s=1), "length <= 2000"),
    ],
    ids=repr,
)
def test_the_answer_to_a_wrong_request_names_the_field(message: object, said: str) -> None:
    with pytest.raises(ControlError, match=said):
        decode_request(framed(message))


def test_what_a_later_version_adds_is_left() -> None:
    message = msgpack.unpackb(encode_answer(RescaleReport((0,), 1, 1, 1, 1, 1.0))[LENGTH_BYTES:])
    message["report"]["colour"] = "green"
    assert decode_answer(framed(message)).report == RescaleReport((0,), 1, 1, 1, 1, 1.0)


@pytest.mark.parametrize("payload", [b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff", b"\xc7\xff\x05" + b"x" * 255, b"\xc1"])
def test_bombs_do_not_go_off(payload: bytes) -> None:
    with pytest.raises(ControlError, match="is not valid"):
        decode_request(payload)


@pytest.mark.parametrize("length", [0, REQUEST_BYTES_MAX + 1, (1 << 32) - 1])
def test_a_frame_without_or_beyond_measure_is_refused_by_its_head(length: int) -> None:
    with pytest.raises(ControlError, match="are allowed"):
        length_of(length.to_bytes(4, "big"), REQUEST_BYTES_MAX)


def test_an_answer_beyond_measure_becomes_the_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_messages, "ANSWER_BYTES_MAX", 150)
    with pytest.raises(ControlError, match="larger than 150 bytes"):
        decoded(RunResult("a" * 200, {}, 0.0), WaitCommand(None))


def test_the_counts_of_ten_thousand_steps_are_within_measure() -> None:
    step = StepCounts("map", 1 << 40, {"out": 1 << 40, "dead_letters": 1 << 40}, keys=1 << 40, epoch=MAX_EPOCH)
    result = RunResult("a" * 64, {f"{number:064}": step for number in range(10_000)}, 1.0)
    assert len(encode_answer(result)) < ANSWER_BYTES_MAX
    assert decoded(result, WaitCommand(None)) == result


def test_options_of_the_autoscaler_arrive_as_they_were_sent_and_wrong_ones_are_an_error() -> None:
    command = AutoscaleCommand(Autoscale(min=2, max=4, target=0.5), 1.0)
    request = encode_request(command)[LENGTH_BYTES:]
    assert decode_request(request).command == command
    with pytest.raises(ControlError, match="min must be at most max"):
        decode_request(request.replace(b"\xa3min\x02", b"\xa3min\x07"))
