"""``RedisStream``: a transactional sink that appends to a stream of Redis.

A writer appends its rows to lists, which no reader of the stream sees. The commit moves them to the stream by
`scripts`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgpack
import msgspec

from malstrom_py.connectors.redis import scripts
from malstrom_py.connectors.redis.client import check_url, connect, connected, place_of, redis_errors
from malstrom_py.data.batch import Batch
from malstrom_py.errors import PlanError, SinkError
from malstrom_py.formats import Format, converter
from malstrom_py.sinks.base import BaseTransactionalSink, CommitContext, SnapshotId, is_left_over
from malstrom_py.sinks.records import SegmentedWriter, converted, payloads_as
from malstrom_py.snapshot.ids import number_of
from malstrom_py.validation import checked_whole
from malstrom_py.worker_context import WorkerInfo

if TYPE_CHECKING:
    import redis

_WHAT: Final = "sinks.RedisStream"
_ROWS_PER_CALL: Final = 1000
_BYTES_PER_CALL: Final = 1 << 20
_FIELDS_MAX: Final = 1000
_MOVED: Final = "moved:"


def fields_of(value: Any) -> Mapping[Any, Any]:
    """Return the fields of the entry for ``value``: its items or fields, or the field ``value``.

    >>> fields_of({"item": "lamp", "pieces": 2}), fields_of(7)
    ({'item': 'lamp', 'pieces': 2}, {'value': 7})
    """
    if isinstance(value, Mapping):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        named: Any = value
        items: Mapping[Any, Any] = named._asdict()
        return items
    return {"value": value}


def _encoded(format: Format, value: Any) -> Mapping[Any, Any]:
    return {"value": format.encode(value)}


def encode_row(made: Mapping[Any, Any]) -> bytes:
    """Return fields in their staged form: names and values in turn, for ``cmsgpack`` of Redis.

    >>> msgpack.unpackb(encode_row({"item": "lamp", "pieces": 2, "sold": None}), raw=True)
    [b'item', b'lamp', b'pieces', b'2', b'sold', b'null']
    """
    if not isinstance(made, Mapping):
        raise SinkError(f"{_WHAT}: fields= must return a dict, it returned {type(made).__name__}")
    if not 0 < len(made) <= _FIELDS_MAX:
        raise SinkError(f"{_WHAT}: an entry has 1 to {_FIELDS_MAX} fields, a value has {len(made)}")
    flat: list[bytes] = []
    for name, value in made.items():
        flat += (_text(name), _text(value))
    packed: Any = msgpack.packb(flat, use_bin_type=False)
    return bytes(packed)


def _text(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    try:
        return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
    except (TypeError, ValueError) as error:
        raise SinkError(
            f"{_WHAT}: a {type(value).__name__} cannot be written as text: give fields= a function that "
            f"returns a dict of str, bytes and numbers"
        ) from error


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of the keys of one step; all are on the node of the stream, by its hash tag."""

    base: str

    @property
    def index(self) -> str:
        return f"{self.base}:index"

    @property
    def log(self) -> str:
        return f"{self.base}:log"

    def fresh(self) -> str:
        """Return the name of a new list."""
        return f"{self.base}:rows:{uuid.uuid4().hex}"


def tag_of(stream: str) -> str | None:
    """Return the hash tag that puts a key on the node of ``stream``; None if there is none.

    >>> tag_of("orders"), tag_of("{shop}:orders"), tag_of("}orders")
    ('orders', 'shop', None)
    """
    _, opened, rest = stream.partition("{")
    tag, closed, _ = rest.partition("}")
    if opened and closed and tag:
        return tag
    return None if "}" in stream else stream


def keys_of(stream: str, job: str, step: str) -> Keys:
    """Return the keys of a step.

    >>> keys_of("orders", "shop", "out").index
    'malstrom:{orders}:orders:shop:out:index'
    """
    return Keys(f"malstrom:{{{tag_of(stream)}}}:{stream}:{job}:{step}")


class RedisStream(BaseTransactionalSink):
    """A sink that appends to the Redis stream ``stream``, exactly once.

    Rows are staged in lists beside the stream while they are written, and moved to it by the commit: by a script that
    Redis runs as one transaction, and that moves 1,000 rows at most, so that Redis is not blocked. So a commit of more
    rows becomes visible in steps; it is never left half done, as a commit is retried until it succeeds. The ids of
    entries are those of the commit. Rows of one key are in their order, also where a rescale has moved the key.

    What Redis has answered is as durable as Redis is configured: with ``appendonly yes`` and ``appendfsync always``, a
    Redis that dies loses nothing. Else it may lose its last writes. Staged rows that are missing are found, as a
    `SinkError`. A commit that Redis has lost is not found.

    ``fields(value)`` returns the fields of an entry, a dict; one of `formats` makes the field ``value``. By default
    these are the items of a dict, the fields of a dataclass or named tuple, and the field ``value`` of any other value.
    Text and bytes are written unchanged, other values as JSON. Keys and timestamps of records are not written.
    ``length_max``: older entries are trimmed (``MAXLEN ~``).

    PlanError: wrong arguments, or the client is not installed. SinkError: Redis cannot be reached or refuses, a value
    has no fields, or staged rows are gone.

    >>> RedisStream("redis://localhost:6379/0", "totals", length_max=1_000_000)
    RedisStream(totals at localhost:6379)
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        fields: Callable[[Any], Mapping[Any, Any]] | Format | None = None,
        length_max: int | None = None,
    ) -> None:
        self._url = check_url(url, _WHAT)
        if not isinstance(stream, str) or not stream or tag_of(stream) is None:
            raise PlanError(f"{_WHAT}: stream is the name of a stream, without }} but for a hash tag {{…}}")
        self._stream = stream
        self._fields = converter(fields, f"{_WHAT}: fields", "the value", partial(partial, _encoded)) or fields_of
        self._length_max = None if length_max is None else checked_whole(length_max, f"{_WHAT}: length_max")

    def __repr__(self) -> str:
        return f"RedisStream({self._stream} at {place_of(self._url)})"

    def open(self, worker: WorkerInfo) -> StreamWriter:
        with self._connected("Opening") as client:
            kind = client.type(self._stream)
        if kind not in (b"none", b"stream"):
            raise SinkError(f"the key {self._stream!r} at {place_of(self._url)} is not a stream: use another name")
        return StreamWriter(connect(self._url), self._url, keys_of(self._stream, worker.job, worker.step), self._fields)

    def commit(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        keys = keys_of(self._stream, context.job, context.step)
        lists = _lists(keys, context, payloads)
        rows = sum(one.rows for one in lists)
        if not rows:
            return
        names = [self._stream, keys.index, keys.log, *(one.key for one in lists)]
        what: list[str | int] = [context.snapshot, number_of(context.snapshot), rows, _ROWS_PER_CALL]
        what.append(self._length_max or "")
        with self._connected("The commit to") as client:
            move = client.register_script(scripts.COMMIT)
            left = rows
            while left > 0:
                left = int(move(keys=names, args=what))
        if left < 0:
            raise SinkError(
                f"rows of snapshot {context.snapshot} that were staged for the stream {self._stream!r} are gone: they "
                f"were deleted or evicted, or Redis lost its last writes. Resume from an older snapshot"
            )

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        keys = keys_of(self._stream, context.job, context.step)
        named = [one.key for one in _lists(keys, context, payloads)]
        with self._connected("Removing rows staged for") as client:
            _discard(client, keys, named, context.snapshot)

    def recover(self, context: CommitContext, committed: Sequence[SnapshotId]) -> None:
        keys = keys_of(self._stream, context.job, context.step)
        with self._connected("Removing rows staged for") as client:
            index: Any = client.hgetall(keys.index)
            staged = {key.decode(): snapshot.decode() for key, snapshot in index.items()}
            for snapshot in {name.removeprefix(_MOVED) for name in staged if name.startswith(_MOVED)}:
                if is_left_over(snapshot, context, committed):
                    _discard(client, keys, [], snapshot)
            # A list without a snapshot was never pre-committed. If it belongs to a newer start, because this call was
            # delayed, its writer notices at its next call, and that start goes back to its last snapshot.
            gone = [
                key
                for key, snapshot in staged.items()
                if not key.startswith(_MOVED) and (not snapshot or is_left_over(snapshot, context, committed))
            ]
            _discard(client, keys, gone, "")

    def _connected(self, what: str) -> AbstractContextManager[redis.Redis]:
        return connected(SinkError, f"{what} the stream {self._stream!r}", self._url)


class _Rows(msgspec.Struct, array_like=True):
    """A list of staged rows. ``version``: that of the routing table under which they were written."""

    version: int
    key: str
    rows: int


def _lists(keys: Keys, context: CommitContext, payloads: Sequence[bytes]) -> list[_Rows]:
    """Return the lists that ``payloads`` name, in the order in which their rows become visible."""
    found = [one for payload in payloads_as(list[_Rows], payloads, context) for one in payload]
    if not all(one.key.startswith(f"{keys.base}:rows:") and one.rows > 0 for one in found):
        raise SinkError(f"a pre-commit payload of step {context.step!r} names rows of another job, step or stream")
    return sorted(found, key=lambda one: one.version)


def _discard(client: redis.Redis, keys: Keys, lists: Sequence[str], snapshot: str) -> None:
    client.register_script(scripts.DISCARD)(keys=[keys.index, *lists], args=[f"{_MOVED}{snapshot}"])


class StreamWriter(SegmentedWriter[_Rows]):
    """Stages the rows of one worker in lists, one for each version of the routing table between two snapshots."""

    def __init__(self, client: redis.Redis, url: str, keys: Keys, fields: Callable[[Any], Mapping[Any, Any]]) -> None:
        super().__init__(rows_max=_ROWS_PER_CALL, bytes_max=_BYTES_PER_CALL)
        self._client = client
        self._url = url
        self._keys = keys
        self._fields = fields

    def records(self, batch: Batch) -> Iterator[tuple[bytes, int]]:
        for made in converted(self._fields, batch.values, f"{_WHAT}: fields", "a dict"):
            row = encode_row(made)
            yield row, len(row)

    def new_segment(self, version: int) -> _Rows:
        return _Rows(version, self._keys.fresh(), 0)

    def stage(self, segment: _Rows, records: list[bytes]) -> None:
        self._call(scripts.STAGE, [self._keys.index, segment.key], [segment.rows, *records])
        segment.rows += len(records)

    def pre_commit(self, context: CommitContext) -> bytes:
        lists = self.taken()
        if lists:
            names = [self._keys.index, *(one.key for one in lists)]
            self._call(scripts.SEAL, names, [context.snapshot, *(one.rows for one in lists)])
        self.segments = []
        return msgspec.json.encode(lists)

    def close(self) -> None:
        """Remove the rows that were not pre-committed."""
        try:
            if self.segments:
                with redis_errors(SinkError, "Removing staged rows", self._url):
                    _discard(self._client, self._keys, [one.key for one in self.segments], "")
        finally:
            self._client.close()

    def _call(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> None:
        with redis_errors(SinkError, "Staging rows", self._url):
            done = self._client.register_script(script)(keys=keys, args=arguments)
        if not done:
            raise SinkError(
                f"rows staged in the Redis at {place_of(self._url)} are gone: a newer start of the job has removed "
                f"them, or Redis lost its last writes. The job continues from its last snapshot, if it has one"
            )
