"""Spark at both ends of a job: sessions, types, and what Spark reads of a job. Imports pyspark only when it is used.

Rule: what is here works with classic and with Connect sessions, so nothing of it knows RDDs, the JVM or SparkContext.
"""
