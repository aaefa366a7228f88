"""Manifests as bytes: JSON, sealed by its digest. docs/snapshot-format.md tells it field by field.

Rule: the format is looked at before anything else, so that a newer one is named; then every field is taken strictly.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Literal

from malstrom_py.errors import CodecError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.json_values import as_json, from_json
from malstrom_py.snapshot.manifest import FORMAT, Artefact, Kind, Manifest, PartImage, PlanImage, StepImage
from malstrom_py.snapshot.sealed import seal
from malstrom_py.snapshot.stored_fields import Fields

MANIFEST: Final = "manifest"
"""The ``kind`` of a manifest among the entries of the log."""


def manifest_bytes(manifest: Manifest) -> bytes:
    """``manifest`` as it is stored.

    Raises:
        ValueError: no snapshot can be like this.
        CodecError: a position, what a step keeps for a part or a pin cannot be stored; names the step.
    """
    manifest.check()
    return seal(_fields_of(manifest))


def manifest_of(stored: Mapping[str, Any]) -> Manifest:
    """The manifest that these fields tell. ValueError: they tell none."""
    fields = Fields(stored, "the manifest")
    found = fields.whole("format")
    if found != FORMAT:
        raise ValueError(f"its format is {found}, where this version of malstrom-py knows {FORMAT}: use a newer one")
    if fields.text("kind") != MANIFEST:
        raise ValueError("it is no manifest")
    try:
        manifest = Manifest(
            format=found,
            job=fields.text("job"),
            id=SnapshotId(fields.text("id")),
            sequence=fields.whole("sequence"),
            incarnation=fields.whole("incarnation"),
            created=fields.text("created"),
            parent=_id_or_none(fields.text_or_none("parent")),
            workers=fields.whole("workers"),
            savepoint=fields.flag("savepoint"),
            plan=_plan_of(fields.table("plan")),
            artefacts=tuple(_artefact_of(item) for item in fields.items("artefacts")),
            sources={
                step: {part: _part_of(image, step) for part, image in parts.items()}
                for step, parts in fields.tables("sources")
            },
            parts={
                step: {part: from_json(kept, step=step) for part, kept in parts.items()}
                for step, parts in fields.tables("parts")
            },
            frontiers=_whole_numbers(fields.table("frontiers")),
            sinks={step: _payloads_of(payloads) for step, payloads in fields.table("sinks").items()},
            pins={step: from_json(pin, step=step) for step, pin in fields.table("pins").items()},
            result=_result_of(fields.any("result")),
        )
    except CodecError as error:
        raise ValueError(str(error)) from error
    fields.end()
    manifest.check()
    return manifest


def _fields_of(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": manifest.format,
        "kind": MANIFEST,
        "job": manifest.job,
        "id": manifest.id,
        "sequence": manifest.sequence,
        "incarnation": manifest.incarnation,
        "created": manifest.created,
        "parent": manifest.parent,
        "workers": manifest.workers,
        "savepoint": manifest.savepoint,
        "plan": {
            "slots": manifest.plan.slots,
            "steps": {step: asdict(image) for step, image in manifest.plan.steps.items()},
        },
        "artefacts": [asdict(artefact) for artefact in manifest.artefacts],
        "sources": {
            step: {
                part: {"position": as_json(image.position, step=step), "finished": image.finished}
                for part, image in parts.items()
            }
            for step, parts in manifest.sources.items()
        },
        "parts": {
            step: {part: as_json(kept, step=step) for part, kept in parts.items()}
            for step, parts in manifest.parts.items()
        },
        "frontiers": dict(manifest.frontiers),
        "sinks": {
            step: [base64.b64encode(payload).decode("ascii") for payload in payloads]
            for step, payloads in manifest.sinks.items()
        },
        "pins": {step: as_json(pin, step=step) for step, pin in manifest.pins.items()},
        "result": None if manifest.result is None else as_json(dict(manifest.result), step="result"),
    }


def _plan_of(stored: Mapping[str, Any]) -> PlanImage:
    fields = Fields(stored, "its plan")
    plan = PlanImage(
        slots=fields.whole("slots"), steps={step: _step_of(image, step) for step, image in fields.tables("steps")}
    )
    fields.end()
    return plan


def _step_of(stored: Mapping[str, Any], step: str) -> StepImage:
    fields = Fields(stored, f"step {step!r} of its plan")
    image = StepImage(
        kind=fields.text("kind"),
        keyed=fields.flag("keyed"),
        stateful=fields.flag("stateful"),
        partitioner=fields.text_or_none("partitioner"),
        migrate=fields.text_or_none("migrate"),
    )
    fields.end()
    return image


def _artefact_of(stored: object) -> Artefact:
    fields = Fields(stored, "an artefact")
    artefact = Artefact(
        operator=fields.text("operator"),
        partition=fields.whole("partition"),
        kind=_kind_of(fields.text("kind")),
        snapshot=SnapshotId(fields.text("snapshot")),
        path=fields.text("path"),
        size=fields.whole("size"),
        sha256=fields.text("sha256"),
    )
    fields.end()
    return artefact


def _kind_of(text: str) -> Kind:
    kinds: dict[str, Literal["full", "delta"]] = {"full": "full", "delta": "delta"}
    if text not in kinds:
        raise ValueError("an artefact is neither full nor a delta")
    return kinds[text]


def _part_of(stored: object, step: str) -> PartImage:
    fields = Fields(stored, f"a part of source {step!r}")
    image = PartImage(position=from_json(fields.any("position"), step=step), finished=fields.flag("finished"))
    fields.end()
    return image


def _payloads_of(stored: object) -> tuple[bytes, ...]:
    if not isinstance(stored, list) or not all(isinstance(payload, str) for payload in stored):
        raise ValueError("what a sink has pre-committed is no list of texts")
    return tuple(base64.b64decode(payload.encode("ascii"), validate=True) for payload in stored)


def _whole_numbers(stored: Mapping[str, Any]) -> dict[str, int]:
    if not all(type(epoch) is int for epoch in stored.values()):
        raise ValueError("a frontier is no whole number")
    return dict(stored)


def _result_of(stored: object) -> Mapping[str, Any] | None:
    result = None if stored is None else from_json(stored, step="result")
    if not isinstance(result, dict | None):
        raise ValueError("its result is no table")
    return result


def _id_or_none(text: str | None) -> SnapshotId | None:
    return None if text is None else SnapshotId(text)
