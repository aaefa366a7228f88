"""Folders that are watched for new files: which ones the patterns mean, what is in them now, what has gone.

A folder is listed by names alone; that a name is a folder itself is only asked for names that are new.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath

from malstrom_py.errors import SourceError
from malstrom_py.sources.base import Part
from malstrom_py.sources.files.listing import goes_below, is_file, leading_parts, matching_names, matching_of
from malstrom_py.sources.files.streams import why_unreadable


@dataclass(frozen=True, slots=True)
class WatchedFolder:
    """``folder`` and the patterns of what is in it or below; ``part`` is what the user wrote."""

    part: Part
    folder: Path
    patterns: tuple[str, ...]

    def names(self) -> dict[str, str] | None:
        """What matches now, seen from the folder, with the pattern it matches; None if there is no folder (yet).

        `SourceError`: it cannot be listed.
        """
        try:
            with os.scandir(self.folder) as entries:
                listed = [entry.name for entry in entries]
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise SourceError(f"{self.folder} is no folder that could be watched: correct the pattern") from None
        except OSError as error:
            raise SourceError(f"{self.folder} cannot be watched: {why_unreadable(error)}.") from error
        return {
            name: pattern
            for pattern in self.patterns
            for name in (matching_names(pattern, self.folder) if goes_below(pattern) else matching_of(listed, pattern))
        }

    def path(self, name: str) -> str:
        """The whole path of one of the names."""
        return str(self.folder / name)

    def files(self, names: Mapping[str, str]) -> Iterator[str]:
        """Those of ``names`` that are no folders, sorted. `SourceError` for one that a pattern means to be a file."""
        return (name for name in sorted(names) if is_file(name, names[name], self.folder))

    def first_files(self, count: int) -> list[str]:
        """The whole paths of the first files there are now."""
        return [self.path(name) for name in islice(self.files(self.names() or {}), count)]

    def has_gone(self, name: str) -> bool:
        """Whether the file is certainly not there any more: what cannot be asked for a while has not gone."""
        try:
            os.lstat(self.folder / name)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False
        return False


def watched_folders(patterns: Sequence[str], base: Path) -> list[WatchedFolder]:
    """The folders in front of the wildcards of ``patterns``, seen from ``base``, each once.

    One that lies below another whose patterns go below it belongs to that: no file is in two of them.
    """
    found: dict[str, tuple[Path, dict[str, str]]] = {}
    for pattern in patterns:
        leading = leading_parts(pattern)
        folder = base.joinpath(*leading)
        below = str(PurePath(*PurePath(pattern).parts[len(leading) :]))
        found.setdefault(os.path.normpath(folder), (folder, {}))[1].setdefault(below, str(PurePath(pattern)))
    for outer in sorted(found, key=len):
        if outer not in found or not any(map(goes_below, found[outer][1])):
            continue
        for inner in [one for one in found if one != outer and PurePath(one).is_relative_to(outer)]:
            way = PurePath(inner).relative_to(outer)
            for below, pattern in found.pop(inner)[1].items():
                found[outer][1].setdefault(str(way / below), pattern)
    return [
        WatchedFolder(Part("|".join(written.values())), folder, tuple(written)) for folder, written in found.values()
    ]
