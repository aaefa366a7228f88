"""Commands say what the job was to be, and are answered once."""

from __future__ import annotations

import pytest

from malstrom_py.errors import InternalError, JobEnded
from malstrom_py.workers.coordinator.command_queue import PendingRescale, PendingSnapshot, future


def test_a_command_says_what_the_job_was_to_be() -> None:
    assert PendingRescale(3, future(), future()).what == "rescaled to 3"
    assert PendingSnapshot(None, future()).what == "saved in a snapshot"
    assert PendingSnapshot("s3://there", future()).what == "saved to s3://there"


def test_an_answer_stays_as_it_was_given_first() -> None:
    asked = PendingRescale(3, future(), future())
    asked.taken.set_result(None)
    asked.refuse(JobEnded("it has"))
    asked.refuse(InternalError("again"))
    assert asked.taken.result() is None
    with pytest.raises(JobEnded):
        asked.done.result()
    assert not asked.done.cancel()
