"""Errors: one tree, with what a program needs as attributes, and able to travel between processes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from malstrom_py import errors
from malstrom_py.errors import InternalError, MalformedRecord, MalstromError, OperatorError, PlanError, SourceError

EVERY = [
    PlanError("wrong"),
    OperatorError("step 'a' failed", step="a", key=("k", 1), function="f at job.py:3"),
    SourceError("no file"),
    MalformedRecord("line 3", record=b"x;y"),
    errors.SinkError("no space left"),
    errors.SparkError("Spark has ended or the connection is lost"),
    errors.SnapshotError("the disk is full"),
    errors.FencedError("another start has taken over"),
    errors.StateError("the disk is full"),
    errors.CodecError("a key of type set", step="a", key=("k", 1), type_name="set"),
    errors.CaptureError("a recording is damaged"),
    errors.ReloadError("its module cannot be imported", step="a"),
    errors.PeerError("a gap"),
    errors.DeadlineError("closing took longer", wait="closing", deadline_s=5.0),
    errors.ControlError("no answer", job="a"),
    errors.JobNotFound("no job", job="a", running=("b",)),
    errors.JobRunning("runs already", job="a"),
    errors.JobEnded("it has ended", job="a", how="failed"),
    errors.OperationInProgress("it continues", job="a", operation="rescale"),
    errors.DagError("no time", node="a"),
    errors.NodeNotFound("no node", node="a"),
    errors.RestoreFailed("damaged", node="a", reason="its checksum"),
    InternalError("our bug"),
]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_one_base_catches_each(error: MalstromError) -> None:
    with pytest.raises(MalstromError):
        raise error


@pytest.mark.parametrize("error", EVERY, ids=lambda error: type(error).__name__)
def test_an_error_survives_the_way_to_another_process(error: Any) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.args, vars(copy)) == (type(error), error.args, vars(error))


def test_every_error_of_the_module_is_tried_here() -> None:
    named = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, MalstromError)}
    assert named - {MalstromError} == {type(error) for error in EVERY}


def test_a_malformed_record_is_a_source_error_that_holds_the_record() -> None:
    error = MalformedRecord("line 3", record="secret")
    assert isinstance(error, SourceError)
    assert error.record == "secret"
    assert "secret" not in str(error)
