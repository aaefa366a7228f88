"""A folder of an object store as a place: files are uploaded at the pre-commit, and published by copies in the store.

Rules:
- A staged object is ``<folder>/_staging/<job>/<step>/<snapshot>/<run>-<n>.<ext>``; ``run`` is random, one per writer.
- A store has no moves: a staged object is copied, then removed. A copy can be repeated: its source never changes, and
  its name belongs to one snapshot alone.
- A store has no locks: a start discards what is staged under earlier snapshots only.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote

from malstrom_py.object_stores import Bucket, object_url
from malstrom_py.sinks.base import CommitContext, is_left_over
from malstrom_py.sinks.output_record import RECORDS
from malstrom_py.sinks.staged import Done, problems
from malstrom_py.sinks.staged.payloads import STAGING, StagedFile, checked
from malstrom_py.sinks.staged.problems import sink_errors
from malstrom_py.sinks.staged.writing import WrittenFile

FILE_BYTES_MAX: Final = 4 << 30
"""S3 copies objects of at most 5 GiB in one request."""

_PARALLEL_MAX: Final = 8
_CHUNK_BYTES: Final = 8 << 20


class ObjectStage:
    """The files of one writer: in a local folder while they are written, then in the store."""

    def __init__(self, place: ObjectPlace, job: str, step: str) -> None:
        self._place = place
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

    def pre_commit(self, written: Sequence[WrittenFile], snapshot: str) -> list[str]:
        """Upload the ``written`` files under ``snapshot``, and remove them here; return their names."""
        names = [
            f"{self._prefix}/{checked(snapshot)}/{self._run}-{number:06d}{file.path.suffix}"
            for number, file in enumerate(written, self._uploaded)
        ]
        self._uploaded += len(written)
        place = self._place
        with place.errors("cannot upload to"):
            try:
                each(
                    lambda pair: place.bucket.upload(place.key(pair[0]), pair[1].path), zip(names, written, strict=True)
                )
            except BaseException:
                with contextlib.suppress(OSError):  # the first error matters; the next start removes what is left
                    place.bucket.delete(list(map(place.key, names)))
                raise
        for file in written:
            file.path.unlink()
        return names

    def discard(self, paths: Sequence[Path]) -> None:
        """Remove files that were never pre-committed."""
        for path in paths:
            path.unlink(missing_ok=True)

    def release(self) -> None:
        """Remove the local folder."""
        self._remove()
        self._folder = None


class ObjectPlace:
    """The folder ``url`` of an object store. ``options``: of the store, as `sinks.Files` takes them."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        place = object_url(url)
        self.url = url.rstrip("/")
        self.bucket = Bucket(place.bucket, options)
        self._root = f"{place.key}/" if place.key else ""

    def __str__(self) -> str:
        return self.url

    def key(self, name: str) -> str:
        """Return the key of ``name`` in this folder."""
        return self._root + name

    def check(self, job: str) -> None:
        """Raise `SinkError` unless the store creates an object only if there is none."""
        key = self.key(f"{RECORDS}/{checked(job)}/_canary-{secrets.token_hex(8)}")
        with self.errors("cannot write to"):
            self.bucket.create(key, b"first")
            second = self.bucket.create(key, b"second")
            self.bucket.delete([key])
        if second:  # that the first one is there already means that its answer was lost
            raise problems.unconditional_store(self.url)

    def stage(self, job: str, step: str) -> ObjectStage:
        return ObjectStage(self, job, step)

    def folder(self, name: str) -> str:
        return quote(name, safe="/=%")  # readers disagree on whether a space in a URL is one in the key

    @contextlib.contextmanager
    def errors(self, what: str) -> Iterator[None]:
        """Turn the errors of the store into a `SinkError`."""
        try:
            yield
        except OSError as error:
            raise problems.store_failed(what, self.url, error) from error

    def has_staged(self, files: Sequence[StagedFile]) -> bool:
        with self.errors("cannot commit to"):
            return any(self.bucket.exists(self.key(file.name)) for file in files)

    def read(self, file: StagedFile) -> bytes:
        return self.bucket.get(self.key(file.name))

    def rewrite(self, files: Sequence[StagedFile], convert: Callable[[Path, Path], bool]) -> None:
        def rewrite(file: StagedFile) -> None:
            with tempfile.TemporaryDirectory(prefix="malstrom-out-") as folder:
                staged, fresh = Path(folder, "staged"), Path(folder, "fresh")
                try:
                    self._download(self.key(file.name), staged)
                except FileNotFoundError:
                    return  # another process has moved it, or `publish` finds that it is missing
                if convert(staged, fresh):
                    self.bucket.upload(self.key(file.name), fresh)

        with self.errors("cannot write again in"):
            each(rewrite, files)

    def publish(self, moves: Sequence[tuple[StagedFile, str]], done: Done, *, folders_are_values: bool) -> None:
        def move(pair: tuple[StagedFile, str]) -> None:
            staged, path = self.key(pair[0].name), pair[1]
            try:
                self.bucket.copy(staged, self.key(path))
            except FileNotFoundError:
                # Another process has moved it, and readers may have removed it since.
                if not self.bucket.exists(self.key(path)) and path not in done():
                    raise problems.removed(f"{self.bucket.root}/{staged}") from None
            else:
                self.bucket.delete([staged])

        each(move, moves)

    def take_back(self, moves: Sequence[tuple[StagedFile, str]], done: Done) -> None:
        published = done()
        self.bucket.delete([self.key(path) for _, path in moves if path not in published])

    def hold(self, files: Sequence[StagedFile]) -> Callable[[], None]:
        return lambda: None

    def discard(self, files: Sequence[StagedFile]) -> None:
        with self.errors("cannot remove uncommitted files in"):
            each(lambda file: self.bucket.delete([self.key(file.name)]), files)

    def tidy(self, files: Sequence[StagedFile]) -> None:
        """Do nothing: a store has no folders."""

    def clear(self, context: CommitContext, committed: Sequence[str]) -> None:
        prefix = self.key(f"{STAGING}/{checked(context.job)}/{checked(context.step)}/")
        with self.errors("cannot clear"):
            found = [key for key, _ in self.bucket.list(prefix)]
            self.bucket.delete(
                [key for key in found if is_left_over(key.removeprefix(prefix).split("/")[0], context, committed)]
            )

    def _download(self, key: str, path: Path) -> None:
        size = self.bucket.stat(key).st_size
        with path.open("xb") as stream:
            for start in range(0, size, _CHUNK_BYTES):
                stream.write(self.bucket.read(key, start, min(start + _CHUNK_BYTES, size)))


def each(do: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call ``do`` for each of ``items``, a few at a time. Raises the first error after all calls have ended."""
    given = list(items)
    if len(given) <= 1:
        for item in given:
            do(item)
        return
    with ThreadPoolExecutor(min(_PARALLEL_MAX, len(given)), thread_name_prefix="malstrom-objects") as pool:
        for future in [pool.submit(do, item) for item in given]:
            future.result()
