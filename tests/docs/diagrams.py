"""Draws the state diagrams of docs/protocol.md from the machines' own tables: ``python -m tests.docs.diagrams``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from malstrom_py.rescale.moves import receiving_machine as region_machine
from malstrom_py.rescale.moves import sending_machine as switch_machine
from malstrom_py.workers.coordinator import job_machine
from malstrom_py.workers.coordinator import machine as coordinator_machine
from tests.tree import ROOT

PAGE = ROOT / "docs" / "protocol.md"

Transitions = Mapping[Any, StrEnum]
"""(phase, what) -> phase."""

MACHINES: dict[str, Transitions] = {
    "region machine": region_machine.TRANSITIONS,
    "switch machine": switch_machine.TRANSITIONS,
    "coordinator machine": coordinator_machine.TRANSITIONS,
    "snapshot machine": job_machine.SNAPSHOTS,
    "planned stop": job_machine.STOPS,
}


def diagram(transitions: Transitions) -> str:
    """A Mermaid state diagram; the first state of the first transition is where the machine begins."""
    first = next(iter(transitions))[0]
    lines = ["stateDiagram-v2", f"    [*] --> {first.name}"]
    phases = {state: None for (start, _), end in transitions.items() for state in (start, end)}
    lines += [f"    {phase.name} : {phase.value}" for phase in phases]
    lines += [f"    {start.name} --> {end.name} : {what}" for (start, what), end in transitions.items()]
    return "\n".join(lines)


def updated(page: str) -> str:
    """Return the page with its diagrams redrawn; each is under a heading with its machine's name."""
    for name, transitions in MACHINES.items():
        block = f"```mermaid\n{diagram(transitions)}\n```"
        pattern = rf"(?ms)^(### The {name}\n.*?)^```mermaid\n.*?^```$"
        page, times = re.subn(pattern, rf"\g<1>{block}", page, count=1)
        if times != 1:
            raise LookupError(f"docs/protocol.md has no diagram under a heading 'The {name}'")
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text()))
