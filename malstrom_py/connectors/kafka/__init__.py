"""Kafka: a source of topics, and a sink that writes in transactions where that is asked for."""
