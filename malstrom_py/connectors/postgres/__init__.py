"""PostgreSQL: a sink in transactions, a source of queries, and a source of changes."""
