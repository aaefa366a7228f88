"""The in-process runtime, and what every runtime gives its user: handles, status, results."""
