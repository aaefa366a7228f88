"""Names of sections: a part's name yields its file name, also one that looks like a section."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py.sources.files.listing import Section, section_of

FILES = st.text(max_size=20) | st.tuples(
    st.text(max_size=5),
    st.sampled_from(["#whole", "#bytes=0-5", "#rowgroups=1-2", "#bytes=0-", "#whole\n", "#bytes=0-٣"]),
).map("".join)
SECTIONS = st.builds(Section, FILES) | st.builds(
    Section, FILES, st.sampled_from(["bytes", "rowgroups"]), st.integers(0, 10**15), st.integers(0, 10**15)
)


@given(section=SECTIONS)
def test_a_section_comes_back_from_the_name_of_its_part(section: Section) -> None:
    assert section_of(section.part) == section


@pytest.mark.parametrize(
    "file", ["a.csv", "folder/a b#c.txt", "#", "a#bytes=", "a#bytes=1-2.csv", "x#bytes=" + "9" * 5000]
)
def test_a_whole_file_goes_by_its_path(file: str) -> None:
    assert Section(file).part == file
    assert section_of(file) == Section(file)
