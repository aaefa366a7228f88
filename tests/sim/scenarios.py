"""Setups that are made for one wrong protocol, where random ones rarely meet it."""

from __future__ import annotations

from tests.sim.setups import Setup

OF: dict[str, Setup] = {}
