"""What sinks write to, and what a job has left in a folder: ``<folder>/_malstrom/<job>.json``.

What sinks write to, and which sinks of one job get in each other's way there.

Rule: what is replaced as a whole has one writer. Those that add to a folder or a table may be many.

What a job has left in a folder: ``<folder>/_malstrom/<job>.json``, written at the commit of sinks with a path.

Rule: a record names what is visible of one job. Its sinks that share a folder share the record, and its snapshots add
to it, those of a finished job that goes on with new input, too. What the job commits when it is begun anew replaces the
record, while the files stay.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import PlanError, SinkError, SourceError
from malstrom_py.sinks.base import CommitContext, SnapshotId


@dataclass(frozen=True, slots=True)
class Target:
    """A folder, or a table of Spark's. ``replaces``: whether all that is there goes, or nothing may be there.

    A sink with an attribute ``target`` of this type is compared with the others of its job.
    """

    place: Path | str
    replaces: bool

    def meets(self, other: Target) -> bool:
        """Whether both are one, or one folder is in the other."""
        if isinstance(self.place, Path) and isinstance(other.place, Path):
            here, there = Path(os.path.realpath(self.place)), Path(os.path.realpath(other.place))
            return here == there or here in there.parents or there in here.parents
        if isinstance(self.place, str) and isinstance(other.place, str):
            return _plain(self.place) == _plain(other.place)
        return False

    def may_show_rows(self) -> bool:
        """Whether rows that are there already stay beside those that are added: all but an empty folder may have some.

        Entries that begin with a dot or ``_`` are no rows.
        """
        if self.replaces or isinstance(self.place, str):
            return not self.replaces
        try:
            return any(not entry.name.startswith((".", "_")) for entry in Path(self.place).iterdir())
        except FileNotFoundError:
            return False
        except OSError:
            return True


def check_targets(sinks: Mapping[str, object]) -> None:
    """`PlanError` if of two sinks, by the names of their steps, one replaces what the other writes to.

    >>> check_targets({"a": Target(Path("/out"), replaces=False), "b": Target(Path("/out"), replaces=False)})
    """
    told = {name: getattr(sink, "target", sink) for name, sink in sinks.items()}
    targets = {name: target for name, target in told.items() if isinstance(target, Target)}
    for (name, target), (other_name, other) in combinations(targets.items(), 2):
        if (target.replaces or other.replaces) and target.meets(other):
            alike = "the same" if target.place == other.place else f"{str(target.place)!r} and"
            raise PlanError(
                f"sinks {name!r} and {other_name!r} write to {alike} {str(other.place)!r}, and "
                f"{' and '.join(repr(n) for n in (name, other_name) if targets[n].replaces)} would replace it: "
                f"give each a place of its own, or all of them mode 'append'"
            )


def _plain(table: str) -> str:
    """The name of a table without what Spark takes for nothing: case, quotes and its default catalog."""
    return table.replace("`", "").lower().removeprefix("spark_catalog.").removeprefix("default.")


RECORDS: Final = "_malstrom"
FORMAT: Final = 1

BY_SPARK: Final = "spark:"
"""What a format begins with if Spark has written the files: its options say what is in them."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What one sink step has written: ``files`` relative to the folder, ``schema`` as Arrow serialises it."""

    format: str
    files: Sequence[str]
    schema: bytes | None = None


@dataclass(frozen=True, slots=True)
class JobOutput:
    """A record. ``snapshot``: the last that was committed. ``result``: the `RunResult` of the run in plain types; None
    where nobody told. ``final``: whether the next commit replaces it, where nobody says before that the job goes on.
    """

    job: str
    snapshot: str
    result: Mapping[str, Any] | None
    outputs: Mapping[str, StepOutput]
    final: bool = True

    def files_of(self, step: str) -> frozenset[str]:
        """What ``step`` has written, as far as it is recorded here."""
        return frozenset(self.outputs[step].files) if step in self.outputs else frozenset()


def record_output(root: Path, context: CommitContext, output: StepOutput) -> None:
    """Record durably what ``context`` has made visible in ``root``, again at will. OSError: it cannot be, and nothing
    has changed.
    """
    known = find_record(root, context.job)
    path = root / RECORDS / f"{context.job}.json"
    if known is None or (known.final and known.snapshot != context.snapshot):
        if known is not None and _is_of_old(known, context, output):
            return
        told = JobOutput(context.job, context.snapshot, context.result, {context.step: output}, context.final)
    else:
        told = _added(known, context, output)
    made = not path.parent.exists()
    path.parent.mkdir(exist_ok=True)
    try:
        write_durably(path, _encoded(told))
    except OSError:
        if made:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
        raise


def find_record(root: Path, job: str) -> JobOutput | None:
    """What ``job`` has left in ``root``; None if nothing is recorded, or nothing that anybody can read.

    Raises:
        SinkError: a link would lead elsewhere.
    """
    folder = root / RECORDS
    if folder.is_symlink():
        raise SinkError(f"{folder} is a symbolic link: nothing is recorded through links, remove it")
    try:
        return _decoded((folder / f"{job}.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def begin_record(root: Path, job: str, committed: Sequence[SnapshotId]) -> None:
    """A run of ``job`` begins: it goes on from the last of the ``committed`` snapshots, and adds to what is recorded,
    if that is of one of them; without any it begins anew, and adds nothing to it. OSError: that cannot be noted.
    """
    known = find_record(root, job)
    if known is None or (committed and known.snapshot not in committed):
        return
    if known.final == bool(committed):
        write_durably(root / RECORDS / f"{job}.json", _encoded(replace(known, final=not committed)))


def read_output(root: Path, job: str) -> JobOutput:
    """What ``job`` has left in ``root``.

    >>> import tempfile
    >>> from malstrom_py.sinks.base import SnapshotId
    >>> folder = Path(tempfile.mkdtemp())
    >>> record_output(folder, CommitContext("docs", "out", SnapshotId("s1"), 1), StepOutput("csv", ["out.csv"]))
    >>> read_output(folder, "docs").outputs["out"].files
    ('out.csv',)

    Raises:
        SourceError: there is no such record, it is damaged, or of a later format.
    """
    path = root / RECORDS / f"{job}.json"
    try:
        return _decoded(path.read_bytes())
    except FileNotFoundError:
        there = ", ".join(jobs_in(root)) or "none"
        raise SourceError(f"no output of a job {job!r} is recorded in {root}: recorded are {there}") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SourceError(f"{path} is no record of a job's output ({error}): run the job again") from None


def jobs_in(root: Path) -> list[str]:
    """The jobs that have left a record in ``root``, sorted."""
    return sorted(path.stem for path in (root / RECORDS).glob("*.json") if not path.name.startswith("."))


def write_durably(path: Path, content: bytes) -> None:
    """Have ``path`` hold ``content``, all of it or what it held before, whatever happens in between."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with fresh.open("xb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_of_old(known: JobOutput, context: CommitContext, output: StepOutput) -> bool:
    """Whether a snapshot is committed again, behind the last commit of its job, that tells nothing new."""
    is_old = not context.final and context.snapshot < known.snapshot
    return is_old and known.files_of(context.step).issuperset(output.files)


def _added(known: JobOutput, context: CommitContext, output: StepOutput) -> JobOutput:
    before = known.outputs.get(context.step)
    if before is not None and before.format == output.format:
        files = tuple(dict.fromkeys((*before.files, *output.files)))
        output = replace(output, files=files, schema=before.schema if output.schema is None else output.schema)
    return JobOutput(
        known.job,
        max(known.snapshot, context.snapshot),
        known.result if context.result is None else context.result,
        {**known.outputs, context.step: output},
        known.final or context.final,
    )


def _encoded(output: JobOutput) -> bytes:
    steps = {
        step: {
            "format": one.format,
            "files": list(one.files),
            "schema": None if one.schema is None else base64.b64encode(one.schema).decode(),
        }
        for step, one in output.outputs.items()
    }
    record = {
        "format": FORMAT,
        "job": output.job,
        "snapshot": output.snapshot,
        "final": output.final,
        "result": output.result,
        "outputs": steps,
    }
    return json.dumps(record, indent=1).encode()


def _decoded(text: bytes) -> JobOutput:
    """ValueError: it is none."""
    record = json.loads(text)
    try:
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}, known is {FORMAT}: install a later malstrom-py")
        outputs = {step: _step(one) for step, one in record["outputs"].items()}
        final = record.get("final", True) is True
        return JobOutput(str(record["job"]), str(record["snapshot"]), record["result"], outputs, final)
    except (KeyError, TypeError, AttributeError, binascii.Error):
        raise ValueError("damaged") from None


def _step(one: Mapping[str, Any]) -> StepOutput:
    if not all(isinstance(name, str) for name in one["files"]):
        raise TypeError
    schema = None if one["schema"] is None else base64.b64decode(one["schema"], validate=True)
    return StepOutput(str(one["format"]), tuple(one["files"]), schema)
