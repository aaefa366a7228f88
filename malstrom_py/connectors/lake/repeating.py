"""Changes of tables that others may overtake: repeated, after reading again, until one is done or time is up."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar

from malstrom_py.errors import InternalError, SinkError

DEADLINE_S: Final = 60.0
_ATTEMPTS_MIN: Final = 3
_PAUSE_S: Final = 0.5

R = TypeVar("R")


def repeat(attempt: Callable[[], R | None], lost: Callable[[Exception], str | None], where: str) -> R:
    """Call ``attempt`` until it returns a result, and return that; None asks for another call.

    ``lost``: returns why an error means that the attempt lost a race, or may have; None for an error that is raised.
    `SinkError`: each attempt lost, for `DEADLINE_S`.

    >>> repeat(lambda: 7, lambda error: None, "the table")
    7
    """
    ends = time.monotonic() + DEADLINE_S
    for attempts in itertools.count(1):
        why: str | None = "it does not show what was changed"
        try:
            done = attempt()
        except Exception as error:
            why = lost(error)
            if why is None:
                raise
            done = None
            time.sleep(random.uniform(0, _PAUSE_S))  # so that two do not meet again
        if done is not None:
            return done
        # An attempt may take longer than all that others take, such as the merge of many rows.
        if time.monotonic() > ends and attempts >= _ATTEMPTS_MIN:
            raise SinkError(
                f"{where} could not be changed in {DEADLINE_S:.0f} s ({why}): check that it can be written, and "
                f"let fewer programs write"
            )
    raise InternalError("every attempt returns or raises")
