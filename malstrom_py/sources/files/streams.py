"""Streams the bytes of one file, decompressed, between two offsets. Offsets count decompressed bytes."""

from __future__ import annotations

import codecs
import gzip
import zlib
from io import BufferedReader
from typing import IO, Any, Final, Literal, Protocol

from malstrom_py.errors import SourceError
from malstrom_py.sources.files.listing import COMPRESSIONS

_CHUNK_BYTES: Final = 1 << 16
_BOM: Final = b"\xef\xbb\xbf"

READ_ERRORS: Final = (OSError, EOFError, zlib.error)
"""The exceptions of reading a file: the disk's, and those of damaged compressed data."""


class Status(Protocol):
    """What is known of a file, named as in `os.stat_result`."""

    @property
    def st_size(self) -> int:
        """The size in bytes."""
        ...

    @property
    def st_mtime_ns(self) -> int:
        """The time of its last change, in nanoseconds since 1970."""
        ...


class FilePath(Protocol):
    """A local file (a `Path`), or an object of a store (`objects.ObjectPath`)."""

    @property
    def suffix(self) -> str:
        """The suffix of the name, with its dot."""
        ...

    def stat(self) -> Status:
        """Return what is known of the file."""
        ...

    def open(self, mode: Literal["rb"]) -> IO[bytes]:
        """Open it for reading."""
        ...


class ByteStream:
    """Reads one file forwards, up to ``stop``. A byte order mark at the start is dropped and counted as offset.

    ``encoding``: that of the text, if it is not UTF-8; offsets then count the bytes of the same text in UTF-8. What is
    no text in it becomes bytes that are no UTF-8.

    EOFError: a compressed file of zero bytes; compressed empty data has a header.
    """

    def __init__(self, path: FilePath, *, stop: int | None = None, encoding: str | None = None) -> None:
        self._path = path
        self._encoding = encoding
        self._stop = stop
        self._compression = COMPRESSIONS.get(path.suffix.lower())
        self._file: IO[bytes] = path.open("rb")
        try:
            if self._compression is not None and not path.stat().st_size:
                raise EOFError
            self._bytes: Any = self._decompressed()
            if encoding is not None:
                self._bytes = _InUtf8(self._bytes, encoding)
            self.offset = 0
            self._head = self._read(len(_BOM))
        except BaseException:
            self._file.close()
            raise
        if self._head == _BOM:
            self.offset, self._head = len(_BOM), b""

    def read_into(self, room: memoryview) -> int:
        """Put the next bytes into ``room``; return their number, 0 at ``stop`` or the end of the file."""
        if self._head or not isinstance(self._bytes, BufferedReader):
            chunk = self.read(len(room))
            room[: len(chunk)] = chunk
            return len(chunk)
        if self._stop is not None:
            room = room[: max(0, self._stop - self.offset)]
        size: int = self._bytes.readinto1(room)
        self.offset += size
        return size

    def read(self, size: int = _CHUNK_BYTES) -> bytes:
        """Return the next bytes, at most ``size`` and 64 KiB; empty at ``stop`` or the end of the file."""
        if self._stop is not None and self.offset >= self._stop:
            return b""
        chunk = self._head or self._read(min(size, _CHUNK_BYTES))
        if self._stop is not None:
            size = min(size, self._stop - self.offset)
        chunk, self._head = chunk[:size], self._head[size:]
        self.offset += len(chunk)
        return chunk

    def skip_to(self, offset: int) -> None:
        """Advance to ``offset``; `SourceError` if the file ends before it."""
        if self._compression is None and self._encoding is None and offset > self.offset + len(self._head):
            size = self._file.seek(0, 2)
            self._file.seek(min(offset, size))
            self._head, self.offset = b"", min(offset, size)
        while self.offset < offset:
            chunk = self.read()
            if not chunk:
                raise file_changed(str(self._path), f" (byte {offset})")
            if self.offset > offset:
                keep = self.offset - offset
                self._head, self.offset = chunk[-keep:], offset

    def left(self) -> int | None:
        """Return how many bytes follow by now; None if the file is compressed or in another encoding than UTF-8."""
        if self._compression is not None or self._encoding is not None:
            return None
        size = self._path.stat().st_size
        return max(0, (size if self._stop is None else min(size, self._stop)) - self.offset)

    def close(self) -> None:
        """Close the file."""
        self._bytes.close()
        self._file.close()

    def _read(self, size: int) -> bytes:
        # read1 returns the bytes decompressed before the damage; read would lose them.
        chunk: bytes = self._bytes.read1(size)
        while 0 < len(chunk) < min(size, len(_BOM)):
            more = self._bytes.read1(size - len(chunk))
            if not more:
                break
            chunk += more
        return chunk

    def _decompressed(self) -> Any:
        if self._compression == "gzip":
            return gzip.GzipFile(fileobj=self._file, mode="rb")
        if self._compression == "zstd":
            import pyarrow as pa

            return pa.CompressedInputStream(self._file, "zstd")
        return self._file


class _InUtf8:
    """The text of ``file`` in UTF-8."""

    def __init__(self, file: Any, encoding: str) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder(encoding)("malstrom-no-text")
        self._left = b""
        self._ended = False

    def read1(self, size: int) -> bytes:
        """Return the next bytes, at most ``size``; empty at the end."""
        while not self._left and not self._ended:
            chunk: bytes = self._file.read1(_CHUNK_BYTES)
            self._ended = not chunk
            self._left = self._decoder.decode(chunk, self._ended).encode(errors="surrogateescape")
        chunk, self._left = self._left[:size], self._left[size:]
        return chunk

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _no_text(error: UnicodeError) -> tuple[str, int]:
    """Return what becomes a byte that UTF-8 does not have, in place of bytes that are not text in their encoding."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error("malstrom-no-text", _no_text)


def file_changed(name: str, where: str = "") -> SourceError:
    """Return the error for a file that is shorter than a saved position."""
    return SourceError(
        f"{name} ends before the saved position{where}: the file changed since the position was saved. "
        f"Restore the file, or start the job without resuming."
    )


def file_replaced(name: str) -> SourceError:
    """Return the error for a file that changed since it was opened."""
    return SourceError(
        f"{name} was replaced, written to or removed while it was read: the file changed since it was opened. "
        f"Do not change files while a job reads them; restore the file, or start the job without resuming."
    )


def why_unreadable(error: BaseException) -> str:
    """Describe a read error without any content of the file."""
    if isinstance(error, EOFError) or "Truncated compressed stream" in str(error):
        return "the compressed data is cut off: the file was not written or copied to its end. Replace it"
    if isinstance(error, gzip.BadGzipFile | zlib.error) or getattr(error, "errno", None) is None:
        return "the compressed data is damaged, or the suffix names another compression. Replace the file"
    if isinstance(error, FileNotFoundError):
        return "the file does not exist. Check the path and the working directory"
    if isinstance(error, PermissionError):
        return "it may not be read. Change its permissions, or run the job as a user who may"
    if isinstance(error, IsADirectoryError):
        return "it is a folder, not a file. Write a pattern for the files in it"
    return f"it cannot be read: {getattr(error, 'strerror', None) or type(error).__name__}. Check the file and its disk"
