"""Snapshots: where they are kept, what is in them, and how one is found again (rules S1 to S8)."""
