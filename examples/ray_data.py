"""A model scores the rows of a Ray dataset, in batches: ``python -m examples.ray_data``.

Each worker loads the model once (``mp.per_worker``), and ``map_batches`` gives it the columns of many rows together.
The job begins and ends in Ray Data: what comes before and after it are pipelines of Ray Data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import malstrom_py as mp
from malstrom_py import sinks, sources

if TYPE_CHECKING:
    from ray.data import Dataset


class Model:
    """A logistic regression of two columns; a real one would be loaded from a file here."""

    def __init__(self) -> None:
        self.weights, self.bias = np.array([2.0, 1.0]), -9.0

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probability of each row of ``features``."""
        scores: np.ndarray = features @ self.weights + self.bias
        return np.asarray(1 / (1 + np.exp(-scores)))


model = mp.per_worker(Model)


def infer(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Score a batch of flowers."""
    found = model().probabilities(np.column_stack([rows["length"], rows["width"]]))
    return pa.RecordBatch.from_pydict({"id": rows["id"], "probability": found, "is_large": found > 0.5})


def flowers(count: int) -> Dataset:
    """A dataset of flowers, every second of them large."""
    import ray.data

    made = ray.data.range(count, override_num_blocks=4)
    return made.map_batches(measured, batch_format="numpy")


def measured(rows: Any) -> dict[str, np.ndarray]:
    """Return flowers with these ids."""
    ids = rows["id"]
    return {"id": ids, "length": 2.0 + ids % 2 * 3, "width": ids % 2 + 1.5}


def score(flowers: Dataset, workers: int = 2) -> Dataset:
    """Run the job on Ray, and return the scored flowers."""
    job, scored = mp.Job("flowers"), sinks.RayDataset()
    job.source("flowers", sources.RayDataset(flowers)).map_batches("infer", infer).sink("scored", scored)
    mp.RayRuntime(workers, num_cpus=0.5).run(job)
    return scored.dataset()


if __name__ == "__main__":
    score(flowers(10_000)).show(5)
