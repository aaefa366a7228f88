"""The program that photographs the dashboard: a shorter run of it makes the same pictures."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from examples import dashboard_pictures
from tests.left_out import chromium


@pytest.mark.long
@pytest.mark.needs_chromium
def test_the_pictures_are_made_of_a_running_job(tmp_path: Path) -> None:
    dashboard_pictures.draw(tmp_path, chromium(), rescales=((1.0, 4), (2.0, 3)), end_s=3.5)
    dashboard_pictures.draw_inside(tmp_path, chromium())
    assert (tmp_path / dashboard_pictures.QUERY).stat().st_size > 10_000
    for picture in (*dashboard_pictures.PICTURES, dashboard_pictures.INSIDE):
        data = (tmp_path / picture.file).read_bytes()
        assert struct.unpack(">II", data[16:24]) == (picture.width, picture.height)
        assert len(data) > 20_000, "it is not empty"
