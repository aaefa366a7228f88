"""What seeds must have met: a case without a hit is not tested."""

from __future__ import annotations

from typing import Final

from tests.simulation.commits.targets import DRAWN

WHEREVER: Final = (
    *(
        f"{kind} at {place}"
        for kind in ("die", "pause")
        for place in ("recover", "a step of recover", "pre_commit", "manifest", "commit", "a step of commit", "abort")
    ),
    *(f"fail at {place}" for place in ("pre_commit", "manifest", "commit")),
    "die after manifest",
    "pause before recover",
    "hand over after manifest",
    "hand over at a step of commit",
    "a zombie continues beside a life",
    "a zombie continues between two lives",
    "a zombie continues after the end",
    "a zombie is fenced",
    "another number of workers",
    "a rescale",
    "the clock is set back",
)
"""Deaths and pauses by place, what zombies do, and what differs between lives."""

HARD_CASES: Final = (*(f"target {name}" for name in dict.fromkeys(DRAWN)), *WHEREVER)
"""The same, and each target."""
