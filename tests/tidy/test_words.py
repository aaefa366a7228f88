"""Plain English: words of a private language appear in no docstring, comment, message or page.

The list holds words that were once used all over this repository in senses of their own. Each has a plain
replacement, which the failure names; most often the best one is the field's own noun.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.tree import ROOT

BANNED: Final = {
    r"tell|tells|told|telling": "report, say, print, describe, return",
    r"stand|stands|stood|standing": "is, is stored, waits, means",
    r"behind": "after, below; for lag: the noun",
    r"(?<!there )is no (?!longer|more|such)\w+": "is not a ...",
    r"nobody|somebody|anybody|whoever|whatever|whichever": "name the worker, process or user; any; each",
    r"comes? to (?!an end|the end)|came to": "results in, returns, is",
    r"of itself|of its own accord|of (?:one's|their|its) own": "automatically; its own X",
    r"lets? go|letting go": "release, stop, remove",
    r"anew|afresh|once more": "again, new, from the start",
    r"comes? up|came up|coming up": "start",
    r"go on|goes on|going on|went on|gone on": "continue, resume",
    r"begun again|begins? again": "restart",
    r"what there is|there is to": "name it",
    r"for good|of late|now and then|by and by": "permanently, recently, occasionally",
    r"at once": "immediately, at the same time",
    r"meanwhile": "during that time",
    r"says? so|said so": "name what is reported",
    r"hands? (?:back|out)|handed (?:back|out)": "return, give",
    r"sees? to it": "ensure",
    r"on (?:its|their) way": "in flight",
    r"works? off|worked off": "process",
    r"gets? on with|makes? do|does without": "continue, use",
    r"(?:nothing|none) of (?:it|them|this|that)": "name it",
    r"as (?:it is|they are)": "unchanged",
}
"""What a text must not say -> what to say instead."""

FINDS: Final = re.compile("|".join(rf"(?P<w{i}>\b(?:{words})\b)" for i, words in enumerate(BANNED)), re.IGNORECASE)
INSTEAD: Final = list(BANNED.values())


def texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield each line of prose with its number: of a page all lines, of a module its comments and strings."""
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        yield from enumerate(source.splitlines(), 1)
        return
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield from enumerate(token.string.splitlines(), token.start[0])


def banned_in(file: Path) -> list[str]:
    """Return where ``file`` uses a banned word, and the replacement."""
    return [
        f"{file.relative_to(ROOT)}:{number}: {found[0]!r}: say {INSTEAD[int((found.lastgroup or 'w0')[1:])]}"
        for number, line in texts(file)
        for found in FINDS.finditer(line)
    ]


def files_of(top: str) -> list[Path]:
    """Return the modules and pages below ``top``."""
    path = ROOT / top
    if path.is_file():
        return [path]
    found = sorted(file for kind in ("*.py", "*.md") for file in path.rglob(kind))
    return [file for file in found if file != Path(__file__).resolve()]


@pytest.mark.parametrize(
    "top",
    [
        *("malstrom_py", "workers", "rescale", "examples", "bench", "tests", "docs"),
        *("README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    ],
)
def test_words_are_plain(top: str) -> None:
    wrong = [each for file in files_of(top) for each in banned_in(file)]
    assert not wrong, "\n".join(wrong[:50])


def test_a_banned_word_is_found(tmp_path: Path) -> None:
    file = ROOT / "tests" / "tidy" / "test_words.py"
    assert banned_in(file), "this module quotes the words"
