"""Runs without snapshots refuse to make one; commands are answered once."""

from __future__ import annotations

import pytest

from malstrom_py.errors import InternalError, JobEnded, SnapshotError
from malstrom_py.workers.commands import Rescaling, Saving, WithoutSnapshots, future


def test_a_run_without_snapshots_says_what_to_do() -> None:
    crew = WithoutSnapshots()
    assert crew.snapshots is None
    with pytest.raises(SnapshotError, match=r"give its runtime snapshots=mp\.Snapshots\(uri\)"):
        crew.snapshot(lambda ended: None)
    with pytest.raises(SnapshotError, match="runs without snapshots"):
        crew.savepoint("/somewhere", lambda ended: None)


def test_a_command_says_what_the_job_was_to_be() -> None:
    assert Rescaling(3, future(), future()).what == "rescaled to 3"
    assert Saving(None, future()).what == "saved in a snapshot"
    assert Saving("s3://there", future()).what == "saved to s3://there"


def test_an_answer_stays_as_it_was_given_first() -> None:
    asked = Rescaling(3, future(), future())
    asked.taken.set_result(None)
    asked.refuse(JobEnded("it has"))
    asked.refuse(InternalError("again"))
    assert asked.taken.result() is None
    with pytest.raises(JobEnded):
        asked.done.result()
    assert not asked.done.cancel()
