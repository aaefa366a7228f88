"""The accelerator in C: safe with any buffers, found where it was built, and off when asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from malstrom_py import agg
from malstrom_py.state import accelerator, group_kernels
from malstrom_py.state.groups import Groups
from tests.integration.commands import python
from tests.unit.state.accelerators import COMPILER, FOLDER, PATHS, compiled, library_of

DRIVERS = [Path(__file__).with_name(f"{name}_driver.c") for name in ("groups", "csv")]
CHECKED = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


@pytest.mark.parametrize("source", DRIVERS if COMPILER else [], ids=lambda path: path.stem)
def test_no_call_leaves_its_buffers_and_all_agree_with_a_loop(source: Path, tmp_path: Path) -> None:
    driver = compiled(tmp_path / "driver", [source], *CHECKED)
    done = subprocess.run([driver], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


def arrays_of(groups: Groups) -> list[bytes]:
    return [np.array(array).tobytes() for array in groups.states()]


@given(data=st.data())
def test_both_ways_have_the_same_bits(data: st.DataObject) -> None:
    floats = st.floats() | st.sampled_from([0.0, -0.0, 1e308, -1e308])
    batches = data.draw(
        st.lists(st.lists(st.tuples(st.sampled_from(["", "a", "ü", None]), floats), max_size=40), max_size=3)
    )
    aggs = [agg.sum(), agg.min(), agg.max(), agg.mean(), agg.first(), agg.last(), agg.count()]
    found = []
    for path in PATHS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(accelerator, "library", lambda path=path: library_of(path))
            groups, results = Groups(aggs), []
            for pairs in batches:
                keys = pa.array([key for key, _ in pairs], pa.string())
                values = pa.array([value for _, value in pairs], pa.float64())
                results += [np.array(column).tobytes() for column in groups.scan(keys, [values] * len(aggs))]
            found.append((results, groups.keys().to_pylist(), str(groups.states())))
    assert found[1:] == found[:-1]


def test_it_is_off_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "from malstrom_py.state import accelerator; print(accelerator.library() is None, accelerator.kernels())"
    monkeypatch.setenv(accelerator.VARIABLE, "off")
    assert python("-c", code).stdout.startswith(f"True <module '{group_kernels.__name__}'")


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_what_is_not_a_library_is_logged_and_not_used(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "groups.so"
    broken.write_bytes(content)
    monkeypatch.setenv(accelerator.VARIABLE, str(broken))
    assert accelerator.library.__wrapped__() is None
    assert f"{broken} was built for another machine or version" in caplog.text


@pytest.mark.parametrize("source", ["groups.c"] if COMPILER else [])
def test_a_library_of_another_version_is_logged_and_not_used(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    old = compiled(tmp_path / "groups.so", [FOLDER / source], "-shared", "-fPIC")
    monkeypatch.setenv(accelerator.VARIABLE, str(old))
    assert accelerator.library.__wrapped__() is None
    assert "ms_csv_cut" in caplog.text
