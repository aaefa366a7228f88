"""The laws of every step, ours or a user's, in the order in which they are checked.

Rule: a law relies on the laws before it, so the first broken law names the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from malstrom_py.testing.exact import NO_MUTATION
from malstrom_py.testing.laws.form_law import forms
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
from malstrom_py.testing.laws.state_laws import deltas, installed, migration, on_disk, round_trip, scale, snapshot


@dataclass(frozen=True, slots=True)
class Law:
    """A law. ``check`` raises `LawError` if it is broken, and returns whether the scenario tested it."""

    name: str
    promise: str
    check: Callable[[StepUnderTest, Scenario, Broken], bool]


LAWS: Final = (
    Law("determinism", "the same input gives the same output", determinism),
    Law(NO_MUTATION, "values are shared and must not be changed after they were received or sent", no_mutation),
    Law("state round trip", "encoding and decoding a key's state restores it exactly", round_trip),
    Law("forwarding", "control messages pass once, in order, a watermark after the records it caused", forwarding),
    Law("epoch order", "no record is at or below a forwarded watermark, and these never decrease", epoch_order),
    Law("key kept", "the outputs of a record have its key", key_kept),
    Law("batch-split invariance", "any cutting of the input into batches gives the same output per key", batch_split),
    Law("key isolation", "the output of a key depends on the records of that key only", key_isolation),
    Law("migration invariance", "moving a key (Interrogate, Collect, Acquire) does not change the output", migration),
    Law("snapshot invariance", "a step restored from a barrier gives the same output", snapshot),
    Law("scale invariance", "the persisted state of N instances restores on M", scale),
    Law("delta invariance", "a full artefact and its deltas are the whole state, at any scale", deltas),
    Law("chain invariance", "a step installed from a chain of artefacts continues as if it had not stopped", installed),
    Law("disk invariance", "state that was put on disk and brought back gives the same output", on_disk),
    Law("form invariance", "columns, rows and a mix of both give the same output per key", forms),
)
"""All laws."""

__all__ = ["LAWS", "Broken", "Law", "Scenario", "StepUnderTest"]
