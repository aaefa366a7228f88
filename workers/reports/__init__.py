"""What every room reports: the state of a job, its results, and its errors."""
