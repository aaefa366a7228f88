"""Which section of a file a part is, and how the part is called by it, so that a name alone is enough to read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, cast

from malstrom_py.sources.base import Part

Unit = Literal["bytes", "rowgroups", "whole"]

_FRAGMENT: Final = re.compile(r"#(?:(bytes|rowgroups)=([0-9]{1,18})-([0-9]{1,18})|whole)\Z")


@dataclass(frozen=True, slots=True)
class Section:
    """All of ``file``, or those records of it that begin in the bytes, or stand in the row groups, before ``stop``."""

    file: str
    unit: Unit = "whole"
    start: int = 0
    stop: int = 0

    @property
    def part(self) -> Part:
        """The name of the part.

        A whole file goes by its path alone, unless that itself ends like the name of a section.

        >>> Section("a.parquet", "rowgroups", 0, 3).part, Section("a.csv").part, Section("a#whole").part
        ('a.parquet#rowgroups=0-3', 'a.csv', 'a#whole#whole')
        """
        if self.unit != "whole":
            return Part(f"{self.file}#{self.unit}={self.start}-{self.stop}")
        return Part(f"{self.file}#whole" if _FRAGMENT.search(self.file) else self.file)


def section_of(part: str) -> Section:
    """The section that ``part`` names.

    >>> section_of("a.txt#bytes=0-100")
    Section(file='a.txt', unit='bytes', start=0, stop=100)
    """
    match = _FRAGMENT.search(part)
    if match is None:
        return Section(part)
    file = part[: match.start()]
    return Section(file, cast(Unit, match[1]), int(match[2]), int(match[3])) if match[1] else Section(file)
