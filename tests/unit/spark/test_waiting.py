"""A call is waited for up to a deadline, and what it raises is raised."""

from __future__ import annotations

import threading

import pytest

from malstrom_py.errors import SparkError
from malstrom_py.spark.session import call_within


def test_what_is_raised_is_raised_here_a_timeout_too() -> None:
    def late() -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        call_within(late, within_s=60.0)


def test_a_call_that_does_not_end_is_given_up_at_the_deadline() -> None:
    release = threading.Event()
    with pytest.raises(SparkError, match="Spark did not answer within 0"):
        call_within(lambda: release.wait(60.0), within_s=0.01)
    release.set()
