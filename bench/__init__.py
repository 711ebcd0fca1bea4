"""Mainstem beside Apache Kafka on one machine: `python -m bench list`, `make bench`.

Every figure comes from a node started alone on an empty directory, pinned to the same cores, loaded by the same
program with the same requests; the systems take turns. A *workload* has *sessions*; a session is one life of one
node, in which *rows* are measured; every repetition adds one value to a row's figures. Nothing is averaged away:
the result file keeps every value, the tables show median, smallest and largest.
"""
