"""Folders that no sink can write to: what is said of those that the system makes none of."""

from __future__ import annotations

import pytest

import malstrom_py as mp
from malstrom_py import sinks, sources


@pytest.mark.parametrize("folder", ["/proc/out", "/proc/self/out/deeper"])
def test_a_folder_that_cannot_be_made_is_not_said_to_be_gone(folder: str) -> None:
    job = mp.Job("nowhere")
    job.source("in", sources.Memory([{"a": 1}])).sink("out", sinks.Files(folder, format="json"))
    with pytest.raises(
        mp.SinkError, match=rf"cannot make the folder {folder}: no folder can be made in /proc\S*\. Write"
    ):
        mp.run(job)
