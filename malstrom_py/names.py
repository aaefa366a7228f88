"""Names of jobs and steps. They are stable ids (snapshots and upgrades hang on them), so they are strict."""

from __future__ import annotations

import re
from typing import Final

from malstrom_py.errors import PlanError

NAME_MAX: Final = 64
_LEGAL = re.compile(rf"[A-Za-z0-9_-]{{1,{NAME_MAX}}}")


def check_name(name: object, what: str) -> str:
    """``name`` if it is legal for a job or step (``what`` says which), else `PlanError`.

    >>> check_name("running-mean", "step")
    'running-mean'
    """
    if not isinstance(name, str):
        raise PlanError(
            f"the name of a {what} comes first and is a str, got {type(name).__name__}: "
            f"write for instance .map('double', fn)"
        )
    if not _LEGAL.fullmatch(name):
        raise PlanError(
            f"{what} name {name!r} is not legal: use 1 to 64 letters, digits, '_' or '-', "
            f"for the name is an id in snapshots and file names"
        )
    return name
