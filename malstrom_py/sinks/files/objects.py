"""Files in an object store: written to a local folder, uploaded at the pre-commit, copied to their names at the commit.

Rules:
- Staged objects are ``<folder>/_staging/<job>/<step>/<snapshot>/<run>-<n>.<ext>``; ``run`` is random, one per writer.
- A commit copies them, in the store, to ``<folder>/<partition>/…/<step>-<snapshot>-<n>.<ext>``. A copy can be repeated:
  its source never changes, and its name belongs to this snapshot alone.
- Then it creates the commit object ``<folder>/_malstrom/<job>/<step>/<snapshot>.json``, if there is none, with the
  names and the schema of Parquet files. From then on the commit is done, for any process, and the staged objects are
  removed: a process that was paused finds them missing and copies nothing.
- The store must create an object only if it is absent. A start tries it, and refuses a store that does not.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from malstrom_py.errors import SinkError
from malstrom_py.object_stores import Bucket, object_url
from malstrom_py.sinks.base import CommitContext, is_left_over
from malstrom_py.sinks.files.publishing import named_files
from malstrom_py.sinks.files.schemas import Visible, convert, in_files, packed, schemas_of, unpacked
from malstrom_py.sinks.files.staging import STAGING, WrittenFile, checked, sink_errors
from malstrom_py.sinks.output_record import RECORDS

if TYPE_CHECKING:
    import pyarrow as pa

Agree: TypeAlias = "Callable[[Sequence[bytes], Visible | None], pa.Schema | None]"
"""Returns the one schema of the staged files that payloads name, in the light of what is visible."""

FILE_BYTES_MAX: Final = 4 << 30
"""S3 copies objects of at most 5 GiB in one request."""

_AT_ONCE: Final = 8
_CHUNK_BYTES: Final = 8 << 20
_ID: Final = "([A-Za-z0-9_-]{1,64})"
STAGED_OBJECT: Final = re.compile(rf"{STAGING}/{_ID}/{_ID}/{_ID}/[0-9a-f]{{16}}-[0-9]{{6,}}\.[a-z]+")
"""The name of a staged object, relative to the root; its groups are job, step and snapshot."""


@dataclass(frozen=True, slots=True)
class StagedObject:
    """A pre-committed object ``name`` and its target folder, both relative to the root."""

    name: str
    folder: str


class ObjectStaging:
    """The files of one writer: in a local folder while they are written, then in the store."""

    def __init__(self, store: ObjectFolder, job: str, step: str) -> None:
        self._store = store
        self._prefix = f"{STAGING}/{checked(job)}/{checked(step)}"
        self._run = secrets.token_hex(8)
        self._folder: Path | None = None
        self._remove: Callable[[], object] = lambda: None
        self._uploaded = 0

    def create(self, number: int, extension: str) -> tuple[Path, IO[bytes]]:
        """Create an empty local file."""
        with sink_errors("cannot write a file in the folder for temporary files", tempfile.gettempdir()):
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="malstrom-out-"))
                self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            path = self._folder / f"open-{number}.{extension}"
            return path, path.open("xb")

    def pre_commit(self, written: Sequence[WrittenFile], snapshot: str) -> bytes:
        """Upload the ``written`` files under ``snapshot``, and remove them here; return the payload."""
        names = [
            f"{self._prefix}/{checked(snapshot)}/{self._run}-{number:06d}{file.path.suffix}"
            for number, file in enumerate(written, self._uploaded)
        ]
        self._uploaded += len(written)
        store = self._store
        with store.errors("cannot upload to"):
            try:
                each(
                    lambda pair: store.bucket.upload(store.key(pair[0]), pair[1].path), zip(names, written, strict=True)
                )
            except BaseException:
                with contextlib.suppress(OSError):  # the first error matters; the next start removes what is left
                    store.bucket.delete(list(map(store.key, names)))
                raise
        for file in written:
            file.path.unlink()
        return json.dumps({"files": names, "folders": [file.folder for file in written]}).encode()

    def discard(self, paths: Sequence[Path]) -> None:
        """Remove files that were never pre-committed."""
        for path in paths:
            path.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the local folder."""
        self._remove()
        self._folder = None


class ObjectFolder:
    """The folder ``url`` of an object store, as the target of a sink."""

    def __init__(self, url: str, options: dict[str, str]) -> None:
        place = object_url(url)
        self.url = url.rstrip("/")
        self.bucket = Bucket(place.bucket, options)
        self._root = f"{place.key}/" if place.key else ""
        self._visible: dict[tuple[str, str], Visible] = {}

    def __str__(self) -> str:
        return self.url

    def key(self, name: str) -> str:
        """Return the key of ``name`` in this folder."""
        return self._root + name

    def check(self, job: str) -> None:
        """Raise `SinkError` unless the store creates an object only if there is none."""
        canary = f"{self._root}{RECORDS}/{checked(job)}/_canary-{secrets.token_hex(8)}"
        with self.errors("cannot write to"):
            self.bucket.create(canary, b"first")
            second = self.bucket.create(canary, b"second")
            self.bucket.delete([canary])
        if second:  # that the first one is there already means that its answer was lost
            raise SinkError(
                f"the store of {self.url} overwrites an object that was to be created only if absent, so two starts of "
                f"job {job!r} could both commit. Use a store that has conditional writes"
            )

    def recover(self, context: CommitContext, committed: Sequence[str]) -> None:
        """Check the store, and remove what earlier runs have staged."""
        self.check(context.job)
        self.clear(context, committed)

    def clear(self, context: CommitContext, committed: Sequence[str]) -> None:
        """Remove what earlier runs have staged, except for ``committed`` snapshots and for later ones."""
        prefix = self.key(f"{STAGING}/{checked(context.job)}/{checked(context.step)}/")
        with self.errors("cannot clear"):
            found = [key for key, _ in self.bucket.list(prefix)]
            self.bucket.delete(
                [key for key in found if is_left_over(key.removeprefix(prefix).split("/")[0], context, committed)]
            )

    def commit(self, context: CommitContext, payloads: Sequence[bytes], agree: Agree | None = None) -> None:
        """Make the staged objects visible. Idempotent, also while another process commits the same snapshot.

        ``agree`` returns the one schema of Parquet files, to which other files are converted.
        """
        staged = self._staged(context, payloads)
        if not staged:
            return
        names, record = self._names(context, staged), self._record(context)
        with self.errors("cannot commit to"):
            known = self._known(record)
            content: dict[str, Any] = {"format": 1, "job": context.job, "step": context.step, "files": names}
            if known is None:
                schema = None if agree is None else agree(payloads, self.visible(context.job, context.step))
                content |= {} if schema is None else {"schema": packed(schema)}
                types = schemas_of(payloads)
                copy = partial(self._bring, schema, types)
                try:
                    each(lambda pair: copy(*pair), zip(staged, names, strict=True))
                except FileNotFoundError as error:
                    known = self._known(record)  # Another process may have finished the commit.
                    if known is None:
                        raise SinkError(
                            f"a staged object of {self.url} was removed before its commit. Let no program clear "
                            f"{STAGING}, and run one start of a job at a time; run the job again"
                        ) from error
            if known is None and not self.bucket.create(record, json.dumps(content, indent=1).encode()):
                known = self._known(record)
            if known is not None and _listed(known).get("files") != names:
                raise SinkError(f"{self.bucket.root}/{record} lists other files: another program has written it")
            self._remove(staged)

    def visible(self, job: str, step: str) -> Visible | None:
        """Return the schema that the visible files of ``step`` have; None if it is unknown, or there is no file."""
        if (job, step) not in self._visible:
            with self.errors("cannot look into"):
                prefix = self.key(f"{RECORDS}/{checked(job)}/{checked(step)}/")
                for key, _ in reversed(self.bucket.list(prefix)):
                    last = _listed(self.bucket.get(key))
                    if "schema" not in last:
                        return None
                    file = next((name for name in last["files"] if self.bucket.exists(self.key(name))), None)
                    if file is not None:
                        self._visible[job, step] = Visible(unpacked(last["schema"]), file)
                        break
        return self._visible.get((job, step))

    def abort(self, context: CommitContext, payloads: Sequence[bytes]) -> None:
        """Remove the staged objects, and what an interrupted commit has made visible."""
        staged = self._staged(context, payloads)
        if not staged:
            return
        with self.errors("cannot remove uncommitted files in"):
            names = map(self.key, self._names(context, staged))
            self.bucket.delete([self._record(context), *names])
            self._remove(staged)

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn the errors of the store into a `SinkError`."""
        try:
            yield
        except OSError as error:
            raise SinkError(
                f"{what} {self.url}: {error.strerror or 'an object is missing'}. Check that the store can be reached, "
                f"that the bucket exists and that the credentials allow it; then run the job again"
            ) from error

    def _staged(self, context: CommitContext, payloads: Sequence[bytes]) -> list[StagedObject]:
        """Return the staged objects that ``payloads`` name, in the same order for any order of the payloads."""
        folders = named_files(context, payloads, STAGED_OBJECT)
        return [StagedObject(name, folders[name]) for name in sorted(folders, key=lambda name: (len(name), name))]

    def _names(self, context: CommitContext, staged: Sequence[StagedObject]) -> list[str]:
        prefix = f"{checked(context.step)}-{checked(context.snapshot)}"
        return [
            f"{one.folder}/{prefix}-{number:05d}{Path(one.name).suffix}".lstrip("/")
            for number, one in enumerate(staged)
        ]

    def _record(self, context: CommitContext) -> str:
        return f"{self._root}{RECORDS}/{checked(context.job)}/{checked(context.step)}/{checked(context.snapshot)}.json"

    def _known(self, record: str) -> bytes | None:
        try:
            return self.bucket.get(record)
        except FileNotFoundError:
            return None

    def _bring(self, schema: pa.Schema | None, types: Mapping[str, pa.Schema], staged: StagedObject, name: str) -> None:
        """Copy a staged object to its name, or convert it to ``schema`` if it is of another of ``types``."""
        source, target, found = self.key(staged.name), self.key(name), types.get(staged.name)
        if schema is None or found is None or in_files(found).equals(schema):
            self.bucket.copy(source, target)
            return
        with tempfile.TemporaryDirectory(prefix="malstrom-out-") as folder:
            staged_file, fresh = Path(folder, "staged"), Path(folder, "fresh")
            with staged_file.open("xb") as stream:
                size = self.bucket.stat(source).st_size
                for start in range(0, size, _CHUNK_BYTES):
                    stream.write(self.bucket.read(source, start, min(start + _CHUNK_BYTES, size)))
            convert(staged_file, fresh, schema)
            self.bucket.upload(target, fresh)

    def _remove(self, staged: Sequence[StagedObject]) -> None:
        each(lambda one: self.bucket.delete([self.key(one.name)]), staged)


def _listed(content: bytes) -> dict[str, Any]:
    """Return what a commit object says; nothing if another program has written it."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def each(do: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call ``do`` for each of ``items``, a few at a time. Raises the first error after all calls have ended."""
    given = list(items)
    if len(given) <= 1:
        for item in given:
            do(item)
        return
    with ThreadPoolExecutor(min(_AT_ONCE, len(given)), thread_name_prefix="malstrom-objects") as pool:
        for future in [pool.submit(do, item) for item in given]:
            future.result()
