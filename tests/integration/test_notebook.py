"""Notebooks in a real kernel: cells that collect, await and are interrupted; and the notebook of the examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat.v4
import polars as pl
from nbclient import NotebookClient

from examples.flights.data import monthly_files
from tests.tree import ROOT

NBFORMAT: Any = nbformat
"""Without its types: its functions have none."""

EXAMPLE = ROOT / "examples" / "notebook.ipynb"

BEGIN = """
import asyncio, os, signal
import malstrom_py as mp
from malstrom_py import sinks, sources

def numbers(name="numbers", fn=lambda n: 2 * n):
    return mp.Job(name).source("numbers", sources.Memory(range(3))).map("map", fn)
"""


def run(notebook: Any, folder: Path) -> list[list[Any]]:
    """Return the outputs of each cell with code."""
    client = NotebookClient(notebook, timeout=100, allow_errors=True, resources={"metadata": {"path": str(folder)}})
    client.execute()
    return [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]


def plain(output: Any) -> str:
    return str(output.evalue if output.output_type == "error" else output.data["text/plain"])


def test_a_cell_collects_awaits_and_can_be_interrupted(tmp_path: Path) -> None:
    cells = [
        BEGIN,
        "mp.collect(numbers())",
        "await asyncio.sleep(0)\nmp.collect(numbers())",
        "await asyncio.to_thread(mp.collect, numbers())",
        "async def collected():\n    return mp.collect(numbers())\nawait collected()",
        # What a kernel gets when its user presses stop.
        "mp.collect(numbers(fn=lambda n: os.kill(os.getpid(), signal.SIGINT)))",
        "mp.collect(numbers())",
        "job = mp.Job('job')\njob.source('in', sources.Memory([1])).sink('out', sinks.Memory())\njob",
        "handle = mp.InProcess(progress=False).start(job, control=False)\nhandle.wait()\nhandle",
    ]
    notebook = NBFORMAT.v4.new_notebook(cells=[NBFORMAT.v4.new_code_cell(cell) for cell in cells])
    begin, *collected, refused, stopped, again, job, handle = run(notebook, tmp_path)
    assert not begin
    assert [[plain(output) for output in outputs] for outputs in (*collected, again)] == [["[0, 2, 4]"]] * 4
    assert "await asyncio.to_thread(mp.collect, …)" in plain(refused[0])
    assert [output.ename for output in stopped] == ["KeyboardInterrupt"]
    assert "<svg" in job[0].data["text/html"]
    assert "job job: finished, 1 worker" in handle[0].data["text/html"]
    assert plain(handle[0]) == "JobHandle('job')"


def test_the_notebook_of_the_examples_shows_what_it_says(tmp_path: Path) -> None:
    notebook = NBFORMAT.read(EXAMPLE, 4)
    _, job, rows, result, table, begun, rescaled, *asked, ended, counts = run(notebook, EXAMPLE.parent)
    assert "<svg" in job[0].data["text/html"]
    assert plain(rows[0]).count("window_start") == 3
    assert "27,004 read" in result[0].data["text/html"]
    assert "datetime[μs, UTC]" in plain(table[0])
    assert "running, 2 workers" in begun[0].data["text/html"]
    assert "members=(0, 1, 2, 3)" in plain(rescaled[0])
    assert "finished, 4 workers" in ended[0].data["text/html"]
    files = sorted(Path(monthly_files(tmp_path / "months")).parent.iterdir())[:2]
    january, february = (pl.read_csv(file, columns=["carrier"])["carrier"].value_counts() for file in files)
    of_january, of_both = (
        dict(counted.rows()) for counted in (january, pl.concat([january, february]).group_by("carrier").sum())
    )
    state, keys, query, change = (plain(outputs[0]) for outputs in asked)
    assert state == str(of_january["UA"])
    assert all(f"{airline}      ┆ {of_january[airline]} " in keys for airline in ("AA", "DL"))
    assert f"UA      ┆ {of_january['UA']} " in query
    assert f"UA      ┆ {of_both['UA']} " in change
    assert f"UA  ┆ {of_both['UA']} " in plain(counts[0])


def test_the_notebook_of_the_examples_is_stored_without_outputs() -> None:
    notebook = NBFORMAT.read(EXAMPLE, 4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell for cell in code if cell.outputs or cell.execution_count] == []
