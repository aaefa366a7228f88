"""Watching a job: metrics for Prometheus and OpenTelemetry, the dashboard, and what starts them with a job."""
