"""The names of cases. Rule: they are the same in every process, or the tests cannot be shared by several."""

from __future__ import annotations

import re


def shown(value: object) -> str:
    """Return the name of ``value`` in a test's id (``ids=shown``): its repr, without its address in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
