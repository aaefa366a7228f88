"""``--traceback``: what it shows of an error that comes from another process."""

from __future__ import annotations

import pytest
import typer

import malstrom_py as mp
from malstrom_py import sinks, sources
from malstrom_py.cli.output import reporting_errors
from malstrom_py.workers.reports.error_transfer import pack_error, unpack_error


def inverse(number: int) -> float:
    return 1 / number


def test_the_frames_of_the_user_are_those_of_the_process_that_raised(capsys: pytest.CaptureFixture[str]) -> None:
    job = mp.Job("far")
    job.source("in", sources.Memory([0])).map("inverse", inverse).sink("out", sinks.Memory())
    with pytest.raises(mp.OperatorError) as caught:
        mp.run(job)
    arrived = unpack_error(pack_error(caught.value))
    with pytest.raises(typer.Exit), reporting_errors(traceback=True):
        raise arrived
    said = capsys.readouterr().err
    assert "In the functions of the job, most recent call last:" in said
    assert f'File "{__file__}", line 15, in inverse' in said


def test_an_error_of_this_process_shows_them_once(capsys: pytest.CaptureFixture[str]) -> None:
    job = mp.Job("near")
    job.source("in", sources.Memory([0])).map("inverse", inverse).sink("out", sinks.Memory())
    with pytest.raises(typer.Exit), reporting_errors(traceback=True):
        mp.run(job)
    assert capsys.readouterr().err.count("line 15, in inverse\n") == 1
