"""Folders whose files count only as a log says are refused, wherever in them a pattern begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from malstrom_py.errors import SourceError
from malstrom_py.object_stores import Bucket
from malstrom_py.sources.files import Files

TABLES = [
    ("_spark_metadata/0", "part-0.csv", r'Spark.s streaming.*sources\.Spark\(path=.*table\', format="csv"\)'),
    ("_spark_metadata/0", "day=1/part-0.csv", r"sources\.Spark"),
    ("_delta_log/00000000000000000000.json", "part-0.csv", r"by Delta.*sources\.Delta\('.*table'\)"),
    ("_delta_log/00000000000000000000.json", "day=1/part-0.csv", r"sources\.Delta"),
    ("metadata/00000-x.metadata.json", "data/part-0.csv", r"by Iceberg.*sources\.Iceberg"),
]


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(("log", "file", "words"), TABLES)
def test_a_pattern_in_a_folder_with_a_log_is_refused(
    log: str, file: str, words: str, follow: bool, tmp_path: Path
) -> None:
    for name in (log, file):
        path = tmp_path / "table" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("n\n1\n")
    (tmp_path / "table" / file).with_suffix(".txt").write_text("beside")
    folder = (tmp_path / "table" / file).parent
    for pattern in (tmp_path / "**" / "*.csv", folder / "*.csv"):
        source = Files(pattern, follow=follow)
        with pytest.raises(SourceError, match=words):
            source.list_parts()
    assert Files(tmp_path / "table" / file).list_parts() == [str(tmp_path / "table" / file)]


def test_the_log_itself_can_be_read(tmp_path: Path) -> None:
    for name in ("_delta_log/0.json", "metadata/0.metadata.json", "a.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    assert len(Files(tmp_path / "_delta_log" / "*.json").list_parts()) == 1
    assert len(Files(tmp_path / "metadata" / "*.json").list_parts()) == 1


def test_a_folder_called_metadata_is_no_table(tmp_path: Path) -> None:
    for name in ("metadata/about.json", "a.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("n\n")
    assert len(Files(tmp_path / "*.csv").list_parts()) == 1


@pytest.mark.parametrize(("log", "file", "words"), TABLES)
def test_objects_in_a_folder_with_a_log_are_refused(log: str, file: str, words: str, tmp_path: Path) -> None:
    root = f"memory://{tmp_path.name}"
    for name in (log, file):
        Bucket(root).put(f"table/{name}", b"n\n1\n")
    for pattern in ("**/*.csv", f"table/{file.rpartition('/')[0]}/*.csv".replace("//", "/")):
        with pytest.raises(SourceError, match=words):
            Files(f"{root}/{pattern}").list_parts()
    assert len(Files(f"{root}/table/{file}").list_parts()) == 1
