"""Dates, times and time zones as bytes, and back: zone and fold are kept, so a time comes back as the same instant
and the same wall clock. Zones are `zoneinfo.ZoneInfo` by name, or `datetime.timezone` by offset and name."""

from __future__ import annotations

import datetime as dt
import re
import struct
import zoneinfo
from typing import Final

from malstrom_py.codec.refusal import Malformed, Refused

_DATE: Final = struct.Struct("<HBB")
_TIME: Final = struct.Struct("<BBBIB")  # hour, minute, second, microsecond, fold
_DATETIME: Final = struct.Struct("<HBBBBBIB")
_DELTA: Final = struct.Struct("<iII")
_OFFSET: Final = struct.Struct("<q")
_MICROSECOND: Final = dt.timedelta(microseconds=1)
# A name from data becomes part of a path, so it must look like a name and nothing else.
_ZONE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_+-]{0,31}(/[A-Za-z0-9_+-]{1,31}){0,2}")


def date_to_bytes(value: dt.date) -> bytes:
    """Four bytes: year, month, day."""
    return _DATE.pack(value.year, value.month, value.day)


def date_from_bytes(data: bytes) -> dt.date:
    """The inverse of `date_to_bytes`."""
    return dt.date(*_DATE.unpack(data))


def time_to_bytes(value: dt.time) -> bytes:
    """Wall clock and fold, then the zone."""
    return _TIME.pack(value.hour, value.minute, value.second, value.microsecond, value.fold) + _zone_to_bytes(value)


def time_from_bytes(data: bytes) -> dt.time:
    """The inverse of `time_to_bytes`."""
    hour, minute, second, microsecond, fold = _TIME.unpack_from(data)
    return dt.time(hour, minute, second, microsecond, _zone_from_bytes(data[_TIME.size :]), fold=fold)


def datetime_to_bytes(value: dt.datetime) -> bytes:
    """Date, wall clock and fold, then the zone."""
    return _DATETIME.pack(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, value.fold
    ) + _zone_to_bytes(value)


def datetime_from_bytes(data: bytes) -> dt.datetime:
    """The inverse of `datetime_to_bytes`."""
    year, month, day, hour, minute, second, microsecond, fold = _DATETIME.unpack_from(data)
    zone = _zone_from_bytes(data[_DATETIME.size :])
    return dt.datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold)


def timedelta_to_bytes(value: dt.timedelta) -> bytes:
    """Days, seconds, microseconds."""
    return _DELTA.pack(value.days, value.seconds, value.microseconds)


def timedelta_from_bytes(data: bytes) -> dt.timedelta:
    """The inverse of `timedelta_to_bytes`."""
    return dt.timedelta(*_DELTA.unpack(data))


def timezone_to_bytes(value: dt.timezone) -> bytes:
    """The offset, in microseconds, then the name where it has one of its own."""
    given = value.__getinitargs__()  # type: ignore[attr-defined]  # what pickle uses: (offset,) or (offset, name)
    name: str = given[1] if len(given) > 1 else ""
    # An empty name is a name too: the mark tells them apart.
    return _OFFSET.pack(given[0] // _MICROSECOND) + (
        b"N" + name.encode("utf-8", "surrogatepass") if len(given) > 1 else b""
    )


def timezone_from_bytes(data: bytes) -> dt.timezone:
    """The inverse of `timezone_to_bytes`."""
    offset = dt.timedelta(microseconds=_OFFSET.unpack_from(data)[0])
    name = data[_OFFSET.size :]
    return dt.timezone(offset, name[1:].decode("utf-8", "surrogatepass")) if name else dt.timezone(offset)


def zone_to_bytes(value: zoneinfo.ZoneInfo) -> bytes:
    """Its name."""
    if value.key is None or not _ZONE.fullmatch(value.key):
        raise Refused(zoneinfo.ZoneInfo, "its zone has no name of the tz database. Use ZoneInfo('Area/City')")
    return value.key.encode()


def zone_from_bytes(data: bytes) -> zoneinfo.ZoneInfo:
    """The inverse of `zone_to_bytes`; `Malformed` if this machine does not know the zone."""
    name = data.decode()
    if not _ZONE.fullmatch(name):
        raise Malformed("a time zone has an illegal name")
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise Malformed(f"this machine does not know the time zone {name}; install tzdata") from None


def _zone_to_bytes(value: dt.datetime | dt.time) -> bytes:
    zone = value.tzinfo
    if zone is None:
        return b""
    if type(zone) is dt.timezone:
        return b"O" + timezone_to_bytes(zone)
    if type(zone) is zoneinfo.ZoneInfo:
        return b"Z" + zone_to_bytes(zone)
    raise Refused(
        type(value), f"its time zone is a {type(zone).__module__}.{type(zone).__qualname__}. Use zoneinfo.ZoneInfo"
    )


def _zone_from_bytes(data: bytes) -> dt.tzinfo | None:
    if not data:
        return None
    if data[0] == ord("O"):
        return timezone_from_bytes(data[1:])
    if data[0] == ord("Z"):
        return zone_from_bytes(data[1:])
    raise Malformed("a time zone of an unknown kind")
