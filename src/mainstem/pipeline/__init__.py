"""The background jobs on Spark: split.

What runs without Spark (`config`, `java`, `supervisor`) imports no pyspark; what a task does to bytes
(`journal_slice`, `block_walk`, `split_slice`) does not either, so that it can be tested as plain functions.
"""
