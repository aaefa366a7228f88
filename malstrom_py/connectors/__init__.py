"""Sources and sinks of other systems: databases, table formats and brokers. Each is an extra, imported when it is used.

Users reach them as `malstrom_py.sources.Kafka`, `malstrom_py.sinks.Postgres` and so on.
"""
