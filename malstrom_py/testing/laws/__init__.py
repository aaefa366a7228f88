"""The laws that every step obeys, whoever wrote it, in the order in which they are held against a step.

Rule: a law takes for granted those before it, so that what is broken is named by the first law that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from malstrom_py.testing.exact import NO_MUTATION
from malstrom_py.testing.laws.output_laws import (
    batch_split,
    determinism,
    epoch_order,
    forwarding,
    key_isolation,
    key_kept,
    no_mutation,
)
from malstrom_py.testing.laws.scenario import Broken, Scenario, StepUnderTest
from malstrom_py.testing.laws.state_laws import deltas, migration, round_trip, scale, snapshot


@dataclass(frozen=True, slots=True)
class Law:
    """``check`` raises `LawError` where the law is broken, and says whether the scenario put it to the test at all."""

    name: str
    promise: str
    check: Callable[[StepUnderTest, Scenario, Broken], bool]


LAWS: Final = (
    Law("determinism", "the same input gives the same output", determinism),
    Law(NO_MUTATION, "values are shared and must not be changed once they came in or were sent", no_mutation),
    Law("state round trip", "each key's state comes back as it was, stored or sent", round_trip),
    Law("forwarding", "control messages pass once, in order, an epoch behind what it made the step send", forwarding),
    Law("epoch order", "nothing comes at or below an epoch passed on, and epochs never go back", epoch_order),
    Law("key kept", "what comes out for a record has its key", key_kept),
    Law("batch-split invariance", "any cutting of the input gives the same output per key", batch_split),
    Law("key isolation", "what comes out for a key depends on its own records only", key_isolation),
    Law("migration invariance", "a key that moves (Interrogate, Collect, Acquire) goes on as it would have", migration),
    Law("snapshot invariance", "a step restored from a barrier goes on as it would have", snapshot),
    Law("scale invariance", "what N instances persisted restores on M", scale),
    Law("delta invariance", "what was persisted in full, then where it changed, is all there is, at any scale", deltas),
)
"""All laws."""

__all__ = ["LAWS", "Broken", "Law", "Scenario", "StepUnderTest"]
