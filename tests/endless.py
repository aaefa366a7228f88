"""Numbers without an end for jobs that a test stops, at a pace that leaves the processor to other tests."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count


def endless_numbers(_part: int, start: int) -> Iterator[int]:
    """Yield numbers from ``start`` on, at most 16,000 a second."""
    for number in count(start):
        if number % 16 == 0:
            time.sleep(0.001)
        yield number
