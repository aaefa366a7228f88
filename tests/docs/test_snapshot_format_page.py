"""docs/snapshot-format.md shows entries of the golden snapshot, and describes every field."""

from __future__ import annotations

import json
import re

from malstrom_py.snapshot.log import path_of
from malstrom_py.snapshot.manifest import artefact_path, open_seal
from tests.pages import blocks_of
from tests.tree import ROOT
from tests.vectors.golden_snapshot import FOLDER, JOB

PAGE = (ROOT / "docs" / "snapshot-format.md").read_text()
SHOWN = [json.loads(block.text) for block in blocks_of(PAGE) if block.info == "json"]


def stored(sequence: int) -> dict[str, object]:
    return open_seal((FOLDER / JOB / path_of(sequence)).read_bytes())


def holds(whole: object, shown: object) -> bool:
    """Whether ``shown`` is ``whole``, or leaves out items of its lists and objects."""
    if isinstance(whole, dict) and isinstance(shown, dict):
        return all(name in whole and holds(whole[name], value) for name, value in shown.items())
    if isinstance(whole, list) and isinstance(shown, list):
        return all(value in whole for value in shown)
    return whole == shown


def test_the_claim_and_the_manifest_that_are_shown_are_those_of_the_golden_snapshot() -> None:
    claim, manifest = SHOWN
    assert list(claim.items()) == list(stored(1).items())
    assert list(manifest) == list(stored(4))
    assert [name for name, value in manifest.items() if not holds(stored(4)[name], value)] == []


def test_every_field_of_a_manifest_has_its_row() -> None:
    _, _, section = PAGE.partition("## The manifest")
    rows = re.findall(r"^\| (`.*?`) \|", section, flags=re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == {*stored(4), "parameters"}  # of a job of which one was set


def test_every_field_of_an_artefact_is_told() -> None:
    artefacts = SHOWN[1]["artefacts"]
    (row,) = re.findall(r"^\| `artefacts` \| (.*) \|$", PAGE, flags=re.MULTILINE)
    assert {name for name in artefacts[0] if f"`{name}`" not in row} == set()


def test_every_kind_of_path_is_told() -> None:
    told = re.findall(r"^\| `((?:(?:log|artefacts|commits)/|_latest)[^`]*)` \|", PAGE, flags=re.MULTILINE)
    patterns = [re.sub(r"<\w+>", "[A-Za-z0-9-]+", path.replace("000000000012", r"\d{12}")) for path in told]
    paths = [str(path.relative_to(FOLDER / JOB)) for path in (FOLDER / JOB).rglob("*") if path.is_file()]
    paths.append(artefact_path("id", "step", 0, "delta", compacted=True))  # of chains longer than the golden one
    assert [path for path in paths if not any(re.fullmatch(pattern, path) for pattern in patterns)] == []
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, path) for path in paths)] == []
