"""What moves through a job: batches, messages, event time, and the types of columns."""
