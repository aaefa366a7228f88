"""Which files a pattern names, their formats, and the sections that are partitions. Reads folders, never a file.

The name of a partition holds its section, so that a worker can read a partition by its name alone.
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from pathlib import Path, PurePath
from typing import Final, Literal, cast, get_args

from malstrom_py.errors import PlanError, SourceError
from malstrom_py.local_files import local_path
from malstrom_py.object_stores import is_object_url
from malstrom_py.sources.base import Part
from malstrom_py.sources.files.tables import refuse_local_tables

Unit = Literal["bytes", "rowgroups", "whole"]

_FRAGMENT: Final = re.compile(r"#(?:(bytes|rowgroups)=([0-9]{1,18})-([0-9]{1,18})|whole)\Z")


@dataclass(frozen=True, slots=True)
class Section:
    """A whole ``file``, or its records that begin in the bytes, or lie in the row groups, ``start`` to ``stop``."""

    file: str
    unit: Unit = "whole"
    start: int = 0
    stop: int = 0

    @property
    def part(self) -> Part:
        """The name of the partition.

        The name of a whole file is its path, unless the path itself ends like the name of a section.

        >>> Section("a.parquet", "rowgroups", 0, 3).part, Section("a.csv").part, Section("a#whole").part
        ('a.parquet#rowgroups=0-3', 'a.csv', 'a#whole#whole')
        """
        if self.unit != "whole":
            return Part(f"{self.file}#{self.unit}={self.start}-{self.stop}")
        return Part(f"{self.file}#whole" if _FRAGMENT.search(self.file) else self.file)


def section_of(part: str) -> Section:
    """Return the section that ``part`` names.

    >>> section_of("a.txt#bytes=0-100")
    Section(file='a.txt', unit='bytes', start=0, stop=100)
    """
    match = _FRAGMENT.search(part)
    if match is None:
        return Section(part)
    file = part[: match.start()]
    return Section(file, cast(Unit, match[1]), int(match[2]), int(match[3])) if match[1] else Section(file)


FileFormat = Literal["csv", "json", "parquet", "text"]
FORMATS: Final[tuple[FileFormat, ...]] = get_args(FileFormat)

Pattern = str | os.PathLike[str]

COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
_FORMAT_OF_SUFFIX: Final[dict[str, FileFormat]] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".log": "text",
    ".parquet": "parquet",
    ".txt": "text",
}
_SUFFIXES: Final = ", ".join(_FORMAT_OF_SUFFIX)


def check_patterns(pattern: object) -> list[str]:
    """Return the user's patterns as a list of str; raise `PlanError` if one cannot name local files."""
    given = list(pattern) if isinstance(pattern, Iterable) and not isinstance(pattern, str | bytes) else [pattern]
    patterns: list[str] = []
    for one in given:
        if not isinstance(one, str | os.PathLike) or not isinstance(os.fspath(one), str):
            raise PlanError(f"sources.Files takes a path or pattern (str or Path) or several, got {type(one).__name__}")
        text = str(one)
        if not text or "\0" in text:
            raise PlanError("sources.Files got an empty path, or one with a NUL character")
        if is_object_url(text):
            patterns.append(text)
            continue
        if text.startswith("file://"):
            text = str(local_path(text, "sources.Files"))
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
            raise PlanError(
                f"sources.Files reads local files and objects of stores: {text!r} is neither, give a path, s3://…, "
                f"gs://… or az://…"
            )
        patterns.append(str(Path(text).expanduser()))
    if not patterns:
        raise PlanError("sources.Files got an empty list of patterns")
    return patterns


def format_of(name: str) -> FileFormat | None:
    """Return the format by a file's suffix, ignoring ``.gz`` and ``.zst``; None for an unknown suffix.

    >>> format_of("flights/2013-01.csv.gz"), format_of("flights/2013-01.dat")
    ('csv', None)
    """
    path = PurePath(name.lower())
    if path.suffix in COMPRESSIONS:
        path = path.with_suffix("")
    return _FORMAT_OF_SUFFIX.get(path.suffix)


def format_of_patterns(patterns: Sequence[str]) -> FileFormat | None:
    """Return the format of all ``patterns`` by their suffixes; None if it depends on the files they match."""
    formats: set[FileFormat | None] = {format_of(pattern) for pattern in patterns}
    unknown = [pattern for pattern in patterns if format_of(pattern) is None]
    if unknown and any(PurePath(pattern).suffix and not has_magic(PurePath(pattern).name) for pattern in unknown):
        raise unknown_format(unknown[0])
    if len(formats - {None}) > 1:
        raise PlanError(f"sources.Files reads one format at a time, got {_named(formats)}: make one source per format")
    return None if unknown else formats.pop()


def format_of_parts(parts: Sequence[Part]) -> FileFormat:
    """Return the one format of ``parts`` by their suffixes; else raise `PlanError`."""
    formats: dict[Part, FileFormat | None] = {part: format_of(part) for part in parts}
    for part, file_format in formats.items():
        if file_format is None:
            raise unknown_format(part)
    distinct = set(formats.values())
    if len(distinct) > 1:
        raise PlanError(f"sources.Files reads one format at a time, the pattern matches {_named(distinct)} files")
    return format_of(parts[0]) or "text"


def unknown_format(name: str) -> PlanError:
    """Return the error for a file with an unknown suffix."""
    return PlanError(
        f"sources.Files does not know the format of {name!r} by its suffix (known: {_SUFFIXES}, also before .gz and "
        f".zst): pass format= one of {', '.join(FORMATS)}"
    )


def list_files(patterns: Sequence[str], base: Path, *, known: Sequence[str] | None = None) -> list[Part]:
    """Return the files that ``patterns`` match, relative to ``base``, each once under its first name, sorted by name.

    Wildcards skip names that begin with ``_`` or ``.``. `SourceError`: a pattern matches no file, or a folder.
    ``known``: files listed before, which may have been removed: then a pattern may match no file, and links to removed
    files are left out.
    """
    found: dict[str, str] = {}
    for pattern in patterns:
        # A file may be named "a[1].csv": a pattern that is the name of a file means that file.
        literal = not has_magic(pattern) or os.path.lexists(base / pattern)
        if literal and known is not None and str(PurePath(pattern)) in known and not (base / pattern).exists():
            continue
        for name in _single(pattern, base) if literal else sorted(_match(pattern, base, may_be_none=known is not None)):
            if known is not None and not literal and not (base / name).exists():
                continue  # a link whose file was removed
            found.setdefault(os.path.realpath(base / name), name)
    return [Part(name) for name in sorted(found.values())]


def _single(pattern: str, base: Path) -> list[str]:
    path = base / pattern
    is_file(str(PurePath(pattern)), "", base)
    if not os.path.lexists(path):
        raise SourceError(f"the file {pattern!r} does not exist (in {path.parent}): check path and working directory")
    return [str(PurePath(pattern))]


def _match(pattern: str, base: Path, *, may_be_none: bool) -> list[str]:
    matches = [name for name in matching_names(pattern, base) if is_file(name, pattern, base)]
    refuse_local_tables(matches, pattern, base)
    if not matches and not may_be_none:
        folder = base.joinpath(*leading_parts(pattern))
        raise SourceError(f"no file matches {pattern!r} (looked in {folder}): check pattern and working directory")
    return matches


def matching_names(pattern: str, base: Path) -> list[str]:
    """Return the names of files and folders that ``pattern`` matches, without hidden ones."""
    if not has_magic(pattern):
        return [str(PurePath(pattern))] if os.path.lexists(base / pattern) else []
    parts = PurePath(pattern).parts
    shows_hidden = any(part.startswith("_") for part in parts if has_magic(part))
    prefix, names = len(leading_parts(pattern)), map(PurePath, glob(pattern, root_dir=base, recursive=True))
    return [
        str(name) for name in names if shows_hidden or not any(part.startswith("_") for part in name.parts[prefix:])
    ]


def matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether the parts of a name match those of a pattern. Wildcards skip names that begin with ``_`` or ``.``.

    >>> matches(["in", "a.csv"], ["in", "*.csv"]), matches(["in", "b", "a.csv"], ["in", "**", "*.csv"])
    (True, True)
    >>> matches(["in", "_staging", "a.csv"], ["in", "**", "*.csv"])
    False
    """
    if not patterns:
        return not names
    if patterns[0] == "**":
        if len(patterns) == 1:
            return all(_shown(name, "*") for name in names)
        return matches(names, patterns[1:]) or bool(names and _shown(names[0], "*") and matches(names[1:], patterns))
    if not names or not _matches_one(names[0], patterns[0]):
        return False
    return matches(names[1:], patterns[1:])


def _matches_one(name: str, pattern: str) -> bool:
    if not has_magic(pattern):
        return name == pattern
    return _shown(name, pattern) and fnmatch.fnmatchcase(name, pattern)


def _shown(name: str, pattern: str) -> bool:
    return bool(name) and not any(name.startswith(sign) and not pattern.startswith(sign) for sign in "._")


def is_file(name: str, pattern: str, base: Path) -> bool:
    """Return whether ``name`` is not a folder; `SourceError` for a folder that ``pattern`` names as a file."""
    if not (base / name).is_dir():
        return True
    recursive = "**" in PurePath(pattern).parts
    if not has_magic(pattern) or (
        not recursive and format_of(name) is not None and format_of(name) == format_of(pattern)
    ):
        raise SourceError(f"{name!r} is a folder, not a file (in {base}): write {name}/* for the files in it")
    return False


def goes_below(pattern: str) -> bool:
    """Return whether ``pattern`` may match in subfolders.

    >>> goes_below("*.csv"), goes_below("*/a.csv"), goes_below("**")
    (False, True, True)
    """
    parts = PurePath(pattern).parts
    return len(parts) > 1 or "**" in parts


def leading_parts(pattern: str) -> list[str]:
    """Return the leading components without wildcards: the folder to search.

    >>> leading_parts("data/2013-*/x.csv"), leading_parts("data/x.csv")
    (['data'], ['data'])
    """
    parts = PurePath(pattern).parts
    for index, part in enumerate(parts):
        if has_magic(part):
            return list(parts[:index])
    return list(parts[:-1])


def _named(formats: Iterable[FileFormat | None]) -> str:
    return " and ".join(sorted(str(file_format) for file_format in formats if file_format is not None))
