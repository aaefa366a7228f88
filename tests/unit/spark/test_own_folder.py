"""The folder under the temporary one is this user's alone, or it is not used."""

from __future__ import annotations

from pathlib import Path

import pytest

from malstrom_py.errors import SinkError
from malstrom_py.spark.session import default_staging_folder, make_default_staging


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return default_staging_folder()


def test_it_is_made_for_this_user_and_found_again(folder: Path) -> None:
    make_default_staging(folder, SinkError)
    assert folder.stat().st_mode & 0o777 == 0o700
    make_default_staging(folder, SinkError)


def test_one_that_others_can_write_to_is_refused(folder: Path) -> None:
    make_default_staging(folder, SinkError)
    folder.chmod(0o777)
    with pytest.raises(SinkError, match=r"another user owns it or may write to it\. Remove it, or give staging="):
        make_default_staging(folder, SinkError)


def test_a_link_in_its_place_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "other")
    with pytest.raises(SinkError, match="another user owns it or may write to it"):
        make_default_staging(folder, SinkError)


def test_a_file_in_its_place_is_refused(folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(SinkError, match="File exists"):
        make_default_staging(folder, SinkError)
