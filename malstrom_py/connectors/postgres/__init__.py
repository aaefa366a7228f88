"""PostgreSQL: `sinks.Postgres`, `sources.Postgres` and `sources.PostgresChanges`.

`connecting` has sessions and errors for all three. The sink is `sink`, with `encoding` (rows as text for COPY) and
`staging` (tables of rows that wait for their commit). The source of a table or query is `source`, with `splitting` and
`reading`; that of changes is `changes`, with `slots` and `pgoutput`.
"""
