"""A plan for people: as text and as a Mermaid flow chart."""

from __future__ import annotations

from typing import Any

from malstrom_py.builder.columns_read import columns_of
from malstrom_py.builder.compiled_steps import compiled_of
from malstrom_py.builder.plan import SOURCE_REGION, Plan, Step


def explain(plan: Plan) -> str:
    """Describe a plan, one line per step: rank, name, kind, inputs, detail; exchanges are between the regions."""
    width = max(len(step.name) for step in plan.steps)
    lines = [f"job {plan.job} ({len(plan.steps)} steps, {plan.slots} slots)"]
    for rank, step in enumerate(plan.steps):
        notes = [step.detail] if step.detail else []
        if (columns := columns_of(step)) is not None:
            notes.append(f"reads the columns {', '.join(columns)}")
        if (compiled := compiled_of(step)) is not None:
            notes.append(str(compiled))
        if step.on_error != "fail":
            notes.append(f"on_error={step.on_error}")
        if step.kind == "key_by":
            notes.append("exchange: a keyed region begins")
        if step.renamed_from is not None:
            notes.append(f"renamed from {step.renamed_from}")
        if step.migration is not None:
            notes.append(f"migrate={step.migration.name}")
        inputs = ", ".join(_stream(plan, ref.step, ref.port) for ref in step.inputs)
        arrow = f" <- {inputs}" if inputs else ""
        lines.append(f"  {rank:>2}  {step.name:<{width}}  {step.kind}{arrow}" + _bracketed(notes))
    unread = [_stream(plan, step.name, port) for step, port in _unread(plan)]
    if unread:
        lines.append(f"  read by no step, counted only: {', '.join(unread)}")
    return "\n".join(lines)


def as_plain(plan: Plan) -> dict[str, Any]:
    """Return a plan in types that every format knows."""
    return {
        "job": plan.job,
        "slots": plan.slots,
        "steps": [
            {
                "step": step.name,
                "kind": step.kind,
                "detail": step.detail,
                "inputs": [_stream(plan, ref.step, ref.port) for ref in step.inputs],
                "outputs": [port.name for port in step.ports],
                "region": step.traits.region,
                "columns": None if (columns := columns_of(step)) is None else list(columns),
                "compiled": None if (compiled := compiled_of(step)) is None else compiled.why_not is None,
                "why_not_compiled": None if compiled is None else compiled.why_not,
                "on_error": step.on_error,
                "renamed_from": step.renamed_from,
                "migrate": None if step.migration is None else step.migration.name,
            }
            for step in plan.steps
        ],
    }


def to_mermaid(plan: Plan) -> str:
    """Return a Mermaid ``flowchart`` for Markdown viewers; keyed regions are boxes."""
    lines = ["flowchart LR"]
    regions: dict[str, list[Step]] = {}
    for step in plan.steps:
        # The exchange is drawn on the border, before the region it opens.
        regions.setdefault(SOURCE_REGION if step.kind == "key_by" else step.traits.region, []).append(step)
    for region, steps in regions.items():
        indent = "  "
        if region != SOURCE_REGION:
            lines.append(f'  subgraph region_{_id(plan, region)}["keyed by {region}"]')
            indent = "    "
        lines.extend(f"{indent}{_id(plan, step.name)}{_shape(step)}" for step in steps)
        if region != SOURCE_REGION:
            lines.append("  end")
    for ref, step in plan.edges():
        port = plan.steps[plan.rank(ref.step)].ports[ref.port].name
        label = "" if port == "out" else f"|{port}|"
        lines.append(f"  {_id(plan, ref.step)} -->{label} {_id(plan, step.name)}")
    return "\n".join(lines)


def _stream(plan: Plan, name: str, port: int) -> str:
    label = plan.steps[plan.rank(name)].ports[port].name
    return name if label == "out" else f"{name}.{label}"


def _unread(plan: Plan) -> list[tuple[Step, int]]:
    read = {ref for ref, _ in plan.edges()}
    return [
        (step, port)
        for step in plan.steps
        for port in range(len(step.ports))
        if not any(ref.step == step.name and ref.port == port for ref in read)
    ]


def _bracketed(notes: list[str]) -> str:
    return f"  [{'; '.join(notes)}]" if notes else ""


def _id(plan: Plan, name: str) -> str:
    # Names may be words that Mermaid reserves ("end"), so nodes go by rank.
    return f"s{plan.rank(name)}"


def _shape(step: Step) -> str:
    label = f'"{step.name}<br/><i>{step.kind}</i>"'
    if step.kind in ("source", "sink"):
        return f"[({label})]"
    return "{{" + label + "}}" if step.kind == "key_by" else f"[{label}]"
