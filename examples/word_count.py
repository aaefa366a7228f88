"""Counts the words of text files, and writes the counts when the last line has been read.

python -m examples.word_count          or          malstrom run examples.word_count
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from pathlib import Path

import malstrom_py as mp
from malstrom_py import sinks, sources

INPUT = Path(__file__).parent / "input"


class Totals(mp.KeyedLogic[str, str, int, int]):
    """Counts words, and emits the counts at the maximum epoch, after which no record follows."""

    def on_data(self, message: mp.DataMessage[str, str], key_state: int | None, output: mp.Output[str, int]) -> int:
        return (key_state or 0) + 1

    def on_epoch(self, epoch: mp.Epoch, state: MutableMapping[str, int], output: mp.Output[str, int]) -> None:
        if epoch.time == mp.MAX_EPOCH:
            for word, count in sorted(state.items(), key=lambda item: (-item[1], item[0])):
                output.emit(word, count)


def job(texts: str = f"{INPUT}/*.txt", out: str = "demo-out/word_count") -> mp.Job:
    """Words of ``texts`` -> CSV files ``key,count`` in ``out``, the most frequent first."""
    job = mp.Job("word-count")
    lines = job.source("lines", sources.Files(texts, format="text"))
    (
        lines.flat_map("words", lambda line: re.findall(r"[a-z]+", line.lower()))
        .key_by("word", lambda word: word)
        .stateful_op("totals", Totals())
        .map("row", lambda count: {"count": count})
        .sink("counts", sinks.Files(out, format="csv"))
    )
    return job


if __name__ == "__main__":
    print(mp.run(job()))
