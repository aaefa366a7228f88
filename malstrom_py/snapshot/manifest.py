"""The manifest of a snapshot, and its stored form: all that a job needs to resume, at any number of workers (S5).

Rule: a manifest lists every artefact that a restore needs, with whole chains. So one manifest is enough, and a file
that no manifest lists is not needed. `Manifest.check` holds for every manifest that is written or read.

Stored form: one line of JSON, sealed by a second line with its digest. docs/snapshot-format.md describes each field.
Values of users are plain JSON where JSON restores them exactly; other values, and a dict with the key ``"$"``, are
encoded by the codec under ``"$"`` (S8).

Rule: the digest is verified before anything is read (P6). The format is read first, so that a newer one is named. Then
each field is read strictly: one that is missing, unknown or of another type is a ValueError that names it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, Literal, NoReturn, get_type_hints

import msgspec

from malstrom_py.codec import Codec
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import CodecError
from malstrom_py.sinks.base import SnapshotId
from malstrom_py.snapshot.ids import is_snapshot_id

BYTES_MAX: Final = 256 << 20
"""The largest sealed line: a manifest holds positions and the payloads of sinks, but no state."""


def seal(fields: Mapping[str, Any]) -> bytes:
    r"""Encode ``fields``, which are types of JSON, as a line and its digest.

    >>> seal({"format": 1})[:14], open_seal(seal({"format": 1}))
    (b'{"format": 1}\n', {'format': 1})

    Raises:
        ValueError: they are not JSON, or longer than `BYTES_MAX`.
    """
    line = json.dumps(fields, allow_nan=False).encode("ascii")
    if len(line) > BYTES_MAX:
        raise ValueError(f"it has {len(line)} bytes, and the limit is {BYTES_MAX}")
    return b"%s\n%s" % (line, _digest_of(line))


def open_seal(data: bytes) -> dict[str, Any]:
    """Return the fields that `seal` encoded. ValueError: the digest does not match, or the form is wrong."""
    if len(data) > BYTES_MAX + 1024:
        raise ValueError(f"it has {len(data)} bytes, and the limit is {BYTES_MAX}")
    line, _, below = data.partition(b"\n")
    if below != _digest_of(line):
        raise ValueError("it is damaged: its digest does not match")
    try:
        fields = json.loads(line, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    return fields


def _digest_of(line: bytes) -> bytes:
    return b'{"sha256": "%s"}\n' % hashlib.sha256(line).hexdigest().encode("ascii")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


PACKED: Final = "$"
DEPTH_MAX: Final = 32
"""Values nested deeper than this are packed, so that the JSON of a manifest is never deep."""

_WHOLE_MAX: Final = 1 << 63


def as_json(value: Any, *, step: str) -> Any:
    """Convert ``value`` to types of JSON.

    >>> as_json({"file": "a.csv", "row": 12}, step="orders")
    {'file': 'a.csv', 'row': 12}
    >>> as_json(("a.csv", 12), step="orders")
    {'$': 'EZPHAAGlYS5jc3YM'}

    Raises:
        CodecError: the value cannot be stored; names ``step``.
    """
    if _is_plain(value, DEPTH_MAX):
        return value
    return {PACKED: base64.b64encode(Codec().encode_at_rest(value, step=step)).decode("ascii")}


def from_json(stored: Any, *, step: str) -> Any:
    """Convert the result of `as_json` back. `CodecError` or ValueError if it is damaged.

    >>> from_json({"$": "EZPHAAGlYS5jc3YM"}, step="orders")
    ('a.csv', 12)
    """
    if isinstance(stored, Mapping) and PACKED in stored:
        packed = stored[PACKED]
        if len(stored) != 1 or not isinstance(packed, str):
            raise ValueError(f"a packed value is one text under {PACKED!r}")
        return Codec().decode_at_rest(base64.b64decode(packed.encode("ascii"), validate=True), step=step)
    if not _is_plain(stored, DEPTH_MAX):
        raise ValueError("a value is nested too deep, or is a number that must be packed")
    return stored


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return True
    if kind is int:
        return bool(-_WHOLE_MAX <= value < _WHOLE_MAX)
    if kind is float:
        return bool(math.isfinite(value))
    if depth == 0:
        return False
    if kind is list:
        return all(_is_plain(item, depth - 1) for item in value)
    if kind is dict:
        return PACKED not in value and all(type(key) is str and _is_plain(value[key], depth - 1) for key in value)
    return False


FORMAT: Final = 1
"""The format of the manifests that this version writes; it reads this one and all earlier ones."""

CHAIN_MAX: Final = 1024
"""The largest number of artefacts in a chain, for any setting of `Snapshots`."""

Kind = Literal["full", "delta"]

_OPERATOR = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def artefact_path(snapshot: str, operator: str, partition: int, kind: Kind, *, compacted: bool = False) -> str:
    """Return the path of an artefact, relative to the folder of the job.

    >>> artefact_path("20261122T042242123456Z-1a2b3c4d", "totals", 0, "delta")
    'artefacts/20261122T042242123456Z-1a2b3c4d/totals-0.delta'
    """
    return f"artefacts/{snapshot}/{operator}-{partition}{'.compacted' if compacted else ''}.{kind}"


@dataclass(frozen=True, slots=True)
class Artefact:
    """One file of keyed state: all state of ``operator`` on worker ``partition``, or its changes.

    ``snapshot``: the snapshot that wrote the file; ``path``: relative to the folder of the job; ``size`` in bytes.
    """

    operator: str
    partition: int
    kind: Kind
    snapshot: SnapshotId
    path: str
    size: int
    sha256: str

    def check(self) -> None:
        """Check the fields, and that the path is that of this artefact. ValueError."""
        _demand(_OPERATOR.fullmatch(self.operator) is not None, "an artefact has an illegal name of a step")
        _demand(self.partition >= 0, "a worker's number is below zero")
        _demand(is_snapshot_id(self.snapshot), "an artefact has an illegal id of a snapshot")
        of_it = (self.snapshot, self.operator, self.partition, self.kind)
        places = {artefact_path(*of_it, compacted=compacted) for compacted in (False, True)}
        _demand(self.path in places, f"the artefact of {self.operator!r} has a wrong path")
        _demand(self.size >= 0 and _SHA256.fullmatch(self.sha256) is not None, f"{self.path} has no size or digest")


@dataclass(frozen=True, slots=True)
class PartImage:
    """The position in a part of a source, from `SourcePart.snapshot`, and whether the part is finished."""

    position: Any
    finished: bool = False


@dataclass(frozen=True, slots=True)
class StepImage:
    """The description of one step, to check that the state fits the job that resumes.

    ``partitioner``: the name of the step's partitioner; ``migrate``: the name of the migration function that was
    applied to its state, if any.
    """

    kind: str
    keyed: bool = False
    stateful: bool = False
    partitioner: str | None = None
    migrate: str | None = None


@dataclass(frozen=True, slots=True)
class PlanImage:
    """The description of the job: the number of slots, and the steps by name, in their order."""

    slots: int
    steps: Mapping[str, StepImage] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One committed snapshot. ``sequence``: its number in the log of the job; ``created``: ISO 8601, UTC.

    ``sources``: step -> part -> `PartImage`; ``parts``: step -> part, as ``"source/part"`` -> the step's state of that
    part; ``frontiers``: exchange -> epoch; ``sinks``: step -> the pre-committed payloads of its writers; ``pins``: step
    -> the pinned data of a source; ``result``: the `RunResult` in plain types, after the job has finished;
    ``parameters``: those of the job that were set, by name.
    """

    job: str
    id: SnapshotId
    sequence: int
    incarnation: int
    created: str
    workers: int
    plan: PlanImage
    parent: SnapshotId | None = None
    artefacts: Sequence[Artefact] = ()
    sources: Mapping[str, Mapping[str, PartImage]] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    frontiers: Mapping[str, int] = field(default_factory=dict)
    sinks: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] | None = None
    savepoint: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)
    format: int = FORMAT

    def chains(self) -> dict[tuple[str, int], list[Artefact]]:
        """Return (operator, worker) -> its artefacts, the full one first."""
        chains: dict[tuple[str, int], list[Artefact]] = {}
        for artefact in self.artefacts:
            chains.setdefault((artefact.operator, artefact.partition), []).append(artefact)
        return chains

    def check(self) -> None:
        """Check the invariants of a manifest. ValueError with the reason."""
        _demand(self.format == FORMAT, f"its format is {self.format}, and only {FORMAT} is known")
        _demand(is_snapshot_id(self.id), "it has no id")
        _demand(_is_time(self.created), "it does not say when it was made")
        _demand(self.sequence >= 1 and self.incarnation >= 1, "its number or incarnation is below one")
        _demand(self.workers >= 1 and self.plan.slots >= 1, "its number of workers or of slots is below one")
        if self.parent is not None:
            _demand(is_snapshot_id(self.parent) and self.parent < self.id, "its parent is not before it")
        for artefact in self.artefacts:
            artefact.check()
            _demand(artefact.snapshot <= self.id, f"{artefact.path} is of a later snapshot")
        for (operator, worker), chain in self.chains().items():
            _check_chain(f"step {operator!r} of worker {worker}", chain)
        _demand(
            len({artefact.path for artefact in self.artefacts}) == len(self.artefacts), "an artefact is listed twice"
        )
        for epoch in self.frontiers.values():
            _demand(MIN_EPOCH <= epoch <= MAX_EPOCH, "a frontier is not an epoch")


def _is_time(text: str) -> bool:
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True


def _check_chain(what: str, chain: Sequence[Artefact]) -> None:
    kinds = [artefact.kind for artefact in chain]
    _demand(kinds[0] == "full" and kinds.count("full") == 1, f"{what}: a chain is one full artefact and then deltas")
    _demand(len(chain) <= CHAIN_MAX, f"{what}: a chain has {len(chain)} artefacts, and the limit is {CHAIN_MAX}")
    for earlier, later in pairwise(chain):
        # What was packed ahead of a barrier in full, and what has changed by then, are of one snapshot.
        ascends = earlier.snapshot < later.snapshot or (earlier.kind == "full" and earlier.snapshot == later.snapshot)
        _demand(ascends, f"{what}: a chain is not in the order of its snapshots")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


MANIFEST: Final = "manifest"
"""The ``kind`` of a manifest among the entries of the log."""


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the stored form of ``manifest``.

    Raises:
        ValueError: the manifest is invalid.
        CodecError: a position, a step's state of a part or a pin cannot be stored; names the step.
    """
    manifest.check()
    return seal(_fields_of(manifest))


def check_format(stored: Mapping[str, Any]) -> None:
    """Check that this version knows the format of an entry. ValueError."""
    found = stored.get("format")
    if type(found) is not int:
        raise ValueError("'format' is missing or is not a whole number")
    if found != FORMAT:
        raise ValueError(f"its format is {found}, and this version of malstrom-py knows {FORMAT}: use a newer version")


def strict_form(of: type, **others: Any) -> type[msgspec.Struct]:
    """Return the stored form of the dataclass ``of``: all fields are required, and no others than ``others`` allowed.

    >>> msgspec.convert({"slots": 1024}, strict_form(PlanImage))
    Traceback (most recent call last):
        ...
    msgspec.ValidationError: Object missing required field `steps`
    """
    return msgspec.defstruct(of.__name__, list({**get_type_hints(of), **others}.items()), forbid_unknown_fields=True)


_STORED: Final = strict_form(
    Manifest,
    kind=Literal["manifest"],
    plan=strict_form(PlanImage, steps=dict[str, strict_form(StepImage)]),  # type: ignore[misc]
    artefacts=list[strict_form(Artefact)],  # type: ignore[misc]
    sources=dict[str, dict[str, strict_form(PartImage)]],  # type: ignore[misc]
)


def manifest_of(stored: Mapping[str, Any]) -> Manifest:
    """Return the manifest with these fields. ValueError: they are invalid."""
    check_format(stored)
    # Manifests of earlier versions have no parameters, nor has one of a job without any that was set.
    read = msgspec.convert(msgspec.convert({"parameters": {}, **stored}, _STORED), Manifest, from_attributes=True)
    try:
        manifest = replace(
            read,
            artefacts=tuple(read.artefacts),
            sources={
                step: {
                    part: replace(image, position=from_json(image.position, step=step)) for part, image in of.items()
                }
                for step, of in read.sources.items()
            },
            parts={
                step: {part: from_json(kept, step=step) for part, kept in of.items()} for step, of in read.parts.items()
            },
            sinks={step: tuple(payloads) for step, payloads in read.sinks.items()},
            pins={step: from_json(pin, step=step) for step, pin in read.pins.items()},
            parameters={name: from_json(value, step=name) for name, value in read.parameters.items()},
            result=None if read.result is None else from_json(read.result, step="result"),
        )
    except CodecError as error:
        raise ValueError(str(error)) from error
    if not isinstance(manifest.result, dict | None):
        raise ValueError("its result is not a table")
    manifest.check()
    return manifest


def _fields_of(manifest: Manifest) -> dict[str, Any]:
    set_values = {name: as_json(value, step=name) for name, value in manifest.parameters.items()}
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
        **({"parameters": set_values} if set_values else {}),
    }
