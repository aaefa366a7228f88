"""Targets of sinks, and the output record of a job in a folder: ``<folder>/_malstrom/<job>.json``.

Rules:
- A target that is replaced as a whole has one writer. Any number of sinks may append to a folder or a table.
- The output record names the visible files of one job, and is written at each commit of a sink with a path. Sinks of
  one job that share a folder share the record. Snapshots add to it, also those of a finished job that resumes with new
  input. A job that starts from the beginning replaces the record at its first commit; the old files stay.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from malstrom_py.errors import PlanError, SinkError, SourceError
from malstrom_py.sinks.base import CommitContext, SnapshotId, Target


def check_targets(targets: Mapping[str, Target]) -> None:
    """Raise `PlanError` if one sink replaces the target of another; ``targets`` are those of sinks, by step name.

    >>> check_targets({"a": Target(Path("/out"), replaces=False), "b": Target(Path("/out"), replaces=False)})
    """
    for (name, target), (other_name, other) in combinations(targets.items(), 2):
        if (target.replaces or other.replaces) and target.meets(other):
            alike = "the same" if target.place == other.place else f"{str(target.place)!r} and"
            raise PlanError(
                f"sinks {name!r} and {other_name!r} write to {alike} {str(other.place)!r}, and "
                f"{' and '.join(repr(n) for n in (name, other_name) if targets[n].replaces)} would replace it: "
                f"give each its own target, or all of them mode 'append'"
            )


RECORDS: Final = "_malstrom"
FORMAT: Final = 1

_ATTEMPTS: Final = 300
_PAUSE_S: Final = 0.1

BY_SPARK: Final = "spark:"
"""The prefix of the format of files that Spark has written with its own options."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The output of one sink step: ``files`` relative to the folder, ``schema`` as a serialized Arrow schema."""

    format: str
    files: Sequence[str]
    schema: bytes | None = None


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The output record of a job, up to the commit of ``snapshot``.

    ``result``: the `RunResult` of the run in plain types; None if unknown. ``final``: whether the next commit replaces
    the record, unless `begin_record` announces that the job resumes.
    """

    job: str
    snapshot: str
    result: Mapping[str, Any] | None
    outputs: Mapping[str, StepOutput]
    final: bool = True

    def files_of(self, step: str) -> frozenset[str]:
        """Return the recorded files of ``step``."""
        return frozenset(self.outputs[step].files) if step in self.outputs else frozenset()


def record_output(root: Path, context: CommitContext, output: StepOutput) -> None:
    """Record durably what the commit ``context`` has made visible in ``root``. Idempotent.

    Another process that commits at the same time has its files in the record too. OSError: the record cannot be
    written, and is unchanged.
    """
    path = root / RECORDS / f"{context.job}.json"
    is_new_folder = not path.parent.exists()
    _check_no_link(path.parent)
    path.parent.mkdir(exist_ok=True)
    try:
        with _alone_in(path.parent):
            updated = _updated(find_record(root, context.job), context, output)
            if updated is not None:
                write_durably(path, _encode(updated))
    except OSError:
        if is_new_folder:
            with contextlib.suppress(OSError):
                path.parent.rmdir()
        raise


@contextlib.contextmanager
def _alone_in(records: Path) -> Iterator[None]:
    """Keep other processes from changing ``records``, also one that was paused and continues beside a later start."""
    from malstrom_py.local_files import locked  # a job is defined without it

    for _ in range(_ATTEMPTS):
        with locked(records) as is_alone:
            if is_alone:
                yield
                return
        time.sleep(_PAUSE_S)
    raise BlockingIOError(errno.EAGAIN, f"another process has kept {records} locked for {_ATTEMPTS * _PAUSE_S:.0f} s")


def find_record(root: Path, job: str) -> JobOutput | None:
    """Return the output record of ``job`` in ``root``; None if there is none that can be read.

    Raises:
        SinkError: the folder of records is a symbolic link.
    """
    folder = root / RECORDS
    _check_no_link(folder)
    try:
        return _decode((folder / f"{job}.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _check_no_link(folder: Path) -> None:
    if folder.is_symlink():
        raise SinkError(f"{folder} is a symbolic link, and output is not recorded through links: remove it")


def begin_record(root: Path, job: str, committed: Sequence[SnapshotId], *, before: str | None = None) -> None:
    """Prepare the record for a new run of ``job``.

    A run that resumes adds to the record, if the record belongs to one of the ``committed`` snapshots. A run that
    starts from the beginning (no committed snapshots) replaces it. ``before``: the next snapshot of this run; a record
    of a later one, which is not committed, belongs to a later start, and stays. OSError: the record cannot be written.
    """
    if find_record(root, job) is None:
        return
    with _alone_in(root / RECORDS):
        known = find_record(root, job)
        if known is None or (committed and known.snapshot not in committed):
            return
        # After the clock was set back, a committed snapshot may be later too.
        if not committed and before is not None and known.snapshot > before:
            return
        if known.final == bool(committed):
            write_durably(root / RECORDS / f"{job}.json", _encode(replace(known, final=not committed)))


def read_output(root: Path, job: str) -> JobOutput:
    """Read the output record of ``job`` in ``root``.

    >>> import tempfile
    >>> from malstrom_py.sinks.base import SnapshotId
    >>> folder = Path(tempfile.mkdtemp())
    >>> record_output(folder, CommitContext("docs", "out", SnapshotId("s1"), 1), StepOutput("csv", ["out.csv"]))
    >>> read_output(folder, "docs").outputs["out"].files
    ('out.csv',)

    Raises:
        SourceError: the record does not exist, is damaged, or has a later format.
    """
    path = root / RECORDS / f"{job}.json"
    try:
        return _decode(path.read_bytes())
    except FileNotFoundError:
        jobs = ", ".join(jobs_in(root)) or "none"
        raise SourceError(f"no output of a job {job!r} is recorded in {root}; the recorded jobs are: {jobs}") from None
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise SourceError(f"{path} is not a valid output record ({error}): run the job again") from None


def jobs_in(root: Path) -> list[str]:
    """Return the names of the jobs with an output record in ``root``, sorted."""
    return sorted(path.stem for path in (root / RECORDS).glob("*.json") if not path.name.startswith("."))


def write_durably(path: Path, content: bytes | memoryview) -> None:
    """Replace the content of ``path`` atomically and durably."""
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


def _updated(known: JobOutput | None, context: CommitContext, output: StepOutput) -> JobOutput | None:
    """Return the record with ``output``; None if it has it."""
    if known is not None and not (known.final and known.snapshot != context.snapshot):
        return _merge(known, context, output)
    if known is not None and _is_old_commit(known, context, output):
        return None
    return JobOutput(context.job, context.snapshot, context.result, {context.step: output}, context.final)


def _is_old_commit(known: JobOutput, context: CommitContext, output: StepOutput) -> bool:
    """Return whether an earlier snapshot than the recorded one is committed again, with files that are recorded."""
    is_earlier = not context.final and context.snapshot < known.snapshot
    return is_earlier and known.files_of(context.step).issuperset(output.files)


def _merge(known: JobOutput, context: CommitContext, output: StepOutput) -> JobOutput:
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


def _encode(output: JobOutput) -> bytes:
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


def _decode(text: bytes) -> JobOutput:
    """Decode a record; ValueError if ``text`` is not a valid one."""
    record = json.loads(text)
    try:
        if record["format"] != FORMAT:
            raise ValueError(f"its format is {record['format']!r}, not {FORMAT}: install a later malstrom-py")
        outputs = {step: _decode_step(one) for step, one in record["outputs"].items()}
        final = record.get("final", True) is True
        return JobOutput(str(record["job"]), str(record["snapshot"]), record["result"], outputs, final)
    except (KeyError, TypeError, AttributeError, binascii.Error):
        raise ValueError("damaged") from None


def _decode_step(one: Mapping[str, Any]) -> StepOutput:
    if not all(isinstance(name, str) for name in one["files"]):
        raise TypeError
    schema = None if one["schema"] is None else base64.b64decode(one["schema"], validate=True)
    return StepOutput(str(one["format"]), tuple(one["files"]), schema)
