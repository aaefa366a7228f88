"""The bytes of Kafka's requests and answers, in the versions before "flexible" ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class Reader:
    """Reads fields one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def int8(self) -> int:
        return int(self._take(">b"))

    def int16(self) -> int:
        return int(self._take(">h"))

    def int32(self) -> int:
        return int(self._take(">i"))

    def int64(self) -> int:
        return int(self._take(">q"))

    def boolean(self) -> bool:
        return self.int8() != 0

    def _raw(self, length: int) -> bytes:
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str | None:
        length = self.int16()
        return None if length < 0 else self._raw(length).decode()

    def data(self) -> bytes | None:
        length = self.int32()
        return None if length < 0 else self._raw(length)

    def many(self, read: Callable[[], T]) -> list[T]:
        """Read an array; none is an empty one."""
        return [read() for _ in range(self.int32())]


class Writer:
    """Writes fields one after the other."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def _put(self, form: str, value: int) -> Writer:
        self.parts.append(struct.pack(form, value))
        return self

    def int8(self, value: int) -> Writer:
        return self._put(">b", value)

    def int16(self, value: int) -> Writer:
        return self._put(">h", value)

    def int32(self, value: int) -> Writer:
        return self._put(">i", value)

    def int64(self, value: int) -> Writer:
        return self._put(">q", value)

    def text(self, value: str | None) -> Writer:
        if value is None:
            return self.int16(-1)
        self.int16(len(value.encode()))
        self.parts.append(value.encode())
        return self

    def data(self, value: bytes | None) -> Writer:
        if value is None:
            return self.int32(-1)
        self.int32(len(value))
        self.parts.append(value)
        return self

    def many(self, values: Iterable[T], write: Callable[[T], Any]) -> Writer:
        listed = list(values)
        self.int32(len(listed))
        for value in listed:
            write(value)
        return self

    def all(self) -> bytes:
        return b"".join(self.parts)
