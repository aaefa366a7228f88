"""Counts the words of text files, and writes the counts when the last line has been read.

python -m examples.word_count          or          malstrom run examples.word_count
"""

from __future__ import annotations

import re
from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources

INPUT = Path(__file__).parent / "input"


def job(texts: str = f"{INPUT}/*.txt", out: str = "demo-out/word_count") -> mp.Job:
    """Words of ``texts`` -> CSV files ``key,count`` in ``out``, one row per word."""
    job = mp.Job("word-count")
    lines = job.source("lines", sources.Files(texts, format="text"))
    words = lines.flat_map("words", lambda line: re.findall(r"[a-z]+", line.lower())).key_by("word", str)
    words.count("n").final().map("row", lambda n: {"count": n}).sink("counts", sinks.Files(out, format="csv"))
    return job


if __name__ == "__main__":
    print(mp.run(job()))
