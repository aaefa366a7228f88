"""The log of an actor: one line per event, with the job and who speaks. Ray carries it to the driver and its files."""

from __future__ import annotations

import logging
import sys
from typing import Final

_FORMAT: Final = "%(asctime)s %(levelname)s job={job} {who}: %(message)s"


def log_as(job: str, who: str) -> None:
    """From now on what this process logs under ``malstrom_py`` says that it is ``who``, of ``job``."""
    logger = logging.getLogger("malstrom_py")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT.format(job=job, who=who)))
    logger.handlers[:] = [handler]
    logger.propagate = False
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
