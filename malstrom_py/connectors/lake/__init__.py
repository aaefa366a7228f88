"""Tables of data lakes, Delta and Iceberg: sinks that add files in one commit, sources of a pinned version."""
