"""The background jobs on Spark: splits, merges and compactions.

Modules that run without Spark (`config`, `java`, `supervisor`) import no pyspark; nor do those with a task's work on
bytes (`journal_slice`, `block_walk`, `split_slice`), so that they can be tested as plain functions.
"""
