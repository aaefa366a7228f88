"""What users write: jobs and streams, and the plan that comes of them."""
