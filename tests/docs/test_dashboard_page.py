"""docs/dashboard.md explains each area of the page; the pictures and the libraries are those that it names."""

from __future__ import annotations

import re
import struct

import pytest

from examples.dashboard_pictures import PICTURES, Picture
from tests.tree import ROOT

PAGE = (ROOT / "docs" / "dashboard.md").read_text()
STATIC = ROOT / "workers" / "monitoring" / "static"
BYTES_MAX = 200_000


def test_every_area_of_the_page_is_explained() -> None:
    html = (STATIC / "index.html").read_text()
    areas = re.findall(r'<section class="card".*?<h2 [^>]*>([^<]+)</h2>', html, flags=re.DOTALL)
    assert len(areas) > 5
    assert [area for area in areas if f"**{area}**" not in PAGE] == []
    buttons = re.findall(r"data-opens=\S+>([^<]+)</button>", html)
    assert [button for button in buttons if f"**{button}**" not in PAGE] == []


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.file)
def test_each_picture_is_small_and_shown(picture: Picture) -> None:
    data = (ROOT / "docs" / "images" / picture.file).read_bytes()
    assert f"(images/{picture.file})" in PAGE
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (picture.width, picture.height)
    assert len(data) < BYTES_MAX


def test_the_libraries_of_the_page_are_listed_with_their_versions() -> None:
    licences = (STATIC / "vendor" / "LICENSES.txt").read_text()
    named = set(re.findall(r"^(?:@dagrejs/)?(uPlot|dagre|graphlib) ([\d.]+)", licences, flags=re.MULTILINE))
    page = (ROOT / "docs" / "dependencies.md").read_text()
    assert set(re.findall(r"^\| (\w+) ([\d.]+) \| MIT \|", page, flags=re.MULTILINE)) == named
