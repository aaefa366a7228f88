"""Kafka, through confluent-kafka (librdkafka): `malstrom_py.sources.Kafka` and `malstrom_py.sinks.Kafka`.

`source` lists the partitions; `reader` shares one consumer between the parts of a process, each of which is a `part`.
`sink` writes at least once (`producing`), or exactly once: rows go to a topic for staging (`staging`) and are published
with a marker in one transaction (`publishing`). `client` has the options, errors and questions that all of them need.
"""
