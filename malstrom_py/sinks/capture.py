"""``capture_into``: records what reaches a step on each worker, the data and the progress of event time.

Exactly once by snapshots (S7): a segment ends at each barrier and is committed with its snapshot; what was captured
after the last snapshot is there too, and is deleted when the job starts again and captures it again.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import BinaryIO, Final

import msgspec

from malstrom_py.capture.frames import Header, SegmentWriter, advance
from malstrom_py.capture.places import Place, SegmentFile, place_of
from malstrom_py.capture.recording import (
    CLOSED,
    COMMITTED,
    OPEN,
    Commit,
    Segment,
    begin,
    generation_of,
    segment_of,
    write_commit,
)
from malstrom_py.capture.streams import Writer, write_all
from malstrom_py.clock import SystemClock
from malstrom_py.codec import Codec, TypeTable
from malstrom_py.data.batch import Batch
from malstrom_py.data.messages import MAX_EPOCH, MIN_EPOCH
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.sinks.base import BaseTransactionalSink, BaseTransactionalWriter, CommitContext, SnapshotId
from malstrom_py.worker_context import WorkerInfo

SEGMENT_BYTES: Final = 1 << 26
"""A larger segment ends, and the next one begins."""

TICK_NS: Final = 1_000_000
"""How far apart the times in a recording are."""


class Capture(BaseTransactionalSink):
    """The sink of `StreamBuilder.capture_into`."""

    takes_columns = True

    def __init__(self, target: object, header: Header, types: TypeTable, *, replace: bool) -> None:
        self.place = place_of(target)
        self._header = header
        self._types = types
        self._replace = replace

    def __repr__(self) -> str:
        return f"Capture({self.place!r})"

    def open(self, worker: WorkerInfo) -> _CaptureWriter:
        generation = generation_of(self.place, worker.step)
        return _CaptureWriter(self.place, _header_of(self._header, worker, generation), Codec(self._types))

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        named = [name for payload in payloads for name in msgspec.msgpack.decode(payload, type=list[str])]
        segments = [segment for segment in map(segment_of, named) if segment is not None]
        if segments or context.final:
            # A payload of an earlier version has no name of its stream.
            writers = {f"{segment.generation}/{segment.stream}" for segment in segments} | {*named}
            writers -= {segment.name for segment in segments}
            made = Commit(sorted(writers), [segment.name for segment in segments], context.final)
            write_commit(self.place, context.step, context.snapshot, made)
        for segment in segments:
            self.place.rename(segment.name, replace(segment, state=COMMITTED).name)

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Keep the segments: they show what a job that fails has seen. The next start deletes them."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        begin(self.place, context.job, context.step, committed, replace=self._replace)


class StreamCapture(BaseTransactionalSink):
    """The sink of `StreamBuilder.capture_into` with a `Writer`. What is written cannot be taken back, nor committed."""

    takes_columns = True

    def __init__(self, writer: Writer, header: Header, types: TypeTable) -> None:
        self._writer = writer
        self._header = header
        self._types = types

    def __repr__(self) -> str:
        return f"Capture({self._writer!r})"

    def open(self, worker: WorkerInfo) -> _StreamWriter:
        header = _header_of(self._header, worker)
        return _StreamWriter(self._writer.open(worker), header, Codec(self._types), closes=self._writer.opens)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing: the reader has all."""

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Do nothing: the reader has all."""

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        if committed:
            raise SinkError(
                f"sink {context.step!r} captures into file objects, and its job resumes from a snapshot: what was "
                f"written after it cannot be taken back. Capture into a folder, or start the job and its reader from "
                f"the beginning"
            )


def capture_sink(target: object, header: Header, types: TypeTable, *, replace: bool) -> Capture | StreamCapture:
    """Return the sink that captures into ``target``: a `Writer`, or a place."""
    if isinstance(target, Writer):
        if replace:
            raise PlanError("capture_into: replace= is for recordings in a place, and a capture.Writer has none")
        return StreamCapture(target, header, types)
    return Capture(target, header, types, replace=replace)


def _header_of(header: Header, worker: WorkerInfo, generation: int = 1) -> Header:
    stream = f"w{worker.worker:06}-{secrets.token_hex(4)}"
    return replace(
        header,
        job=worker.job,
        step=worker.step,
        stream=stream,
        worker=worker.worker,
        generation=generation,
        workers=worker.workers,
    )


class _FrameWriter(BaseTransactionalWriter, ABC):
    """Writes what one worker captures, as frames."""

    def __init__(self) -> None:
        self._epoch = MIN_EPOCH
        self._version = 0
        self._has_moved = False
        self._clock = SystemClock()
        self._clock_ns = 0

    @abstractmethod
    def _open(self) -> SegmentWriter:
        """Return the segment that is written."""

    def write(self, batch: Batch) -> None:
        segment, now_ns = self._open(), int(self._clock.now_s() * 1e9)
        if now_ns - self._clock_ns >= TICK_NS:
            self._clock_ns = now_ns
            segment.clock(now_ns)
        segment.batch(batch)

    def advanced(self, epoch: int) -> None:
        """Record that no record at or below ``epoch`` follows."""
        if self._has_moved:
            # One frame, because a reader of all streams must not go by what this one held before.
            self._open().moved(self._version, epoch)
            self._has_moved, self._epoch = False, epoch
        elif epoch > self._epoch:
            self._open().progress(*advance(self._epoch, epoch))
            self._epoch = epoch

    def moved(self, version: int) -> None:
        """Record, with the epoch that `advanced` gets next, that what was written before precedes what any worker
        writes after the move ``version``.
        """
        if version > self._version:
            self._version, self._has_moved = version, True


class _StreamWriter(_FrameWriter):
    """Writes one stream. Its header goes first, so that a reader knows what the stream is."""

    def __init__(self, file: BinaryIO, header: Header, codec: Codec, *, closes: bool) -> None:
        super().__init__()
        self._file = file
        self._closes = closes
        self._segment = SegmentWriter(partial(write_all, file), header, codec)
        self._segment.begin()

    def _open(self) -> SegmentWriter:
        return self._segment

    def pre_commit(self, context: CommitContext) -> bytes:
        return b""

    def close(self) -> None:
        try:
            self._segment.end(last=self._epoch == MAX_EPOCH)
        finally:
            if self._closes:
                self._file.close()


class _CaptureWriter(_FrameWriter):
    def __init__(self, place: Place, header: Header, codec: Codec) -> None:
        super().__init__()
        self._place = place
        self._header = header
        self._codec = codec
        self._file: SegmentFile | None = None
        self._segment: SegmentWriter | None = None
        self._full: list[str] = []

    def write(self, batch: Batch) -> None:
        super().write(batch)
        if self._open().size >= SEGMENT_BYTES:
            self._full.append(self._name(OPEN))
            self._end()
            self._header = replace(self._header, segment=self._header.segment + 1)

    def pre_commit(self, context: CommitContext) -> bytes:
        opened, self._full = self._full, []
        if self._header.segment == 0:
            self._open()  # also if it has brought nothing: it holds back event time, when the job starts again too
        if self._segment is not None:
            self._segment.snapshot(context.snapshot)
            opened.append(self._name(OPEN))
            self._end()
            self._header = replace(self._header, segment=self._header.segment + 1)
        closed = [f"{name.removesuffix(OPEN)}{CLOSED}{context.snapshot}" for name in opened]
        for old, new in zip(opened, closed, strict=True):
            self._place.rename(old, new)
        return msgspec.msgpack.encode([f"{self._header.generation}/{self._header.stream}", *closed])

    def close(self) -> None:
        if self._segment is not None:
            self._end()

    def _end(self) -> None:
        if self._segment is not None and self._file is not None:
            self._segment.end(last=self._epoch == MAX_EPOCH)
            self._file.sync()
            self._file.close()
        self._segment = self._file = None

    def _open(self) -> SegmentWriter:
        if self._segment is None:
            self._clock_ns = 0
            self._file = self._place.create(self._name(OPEN))
            self._segment = SegmentWriter(self._file.write, self._header, self._codec)
        return self._segment

    def _name(self, state: str) -> str:
        header = self._header
        return Segment(header.step, header.generation, header.stream, header.segment, state).name
