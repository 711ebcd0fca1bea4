"""Object stores behind one port, `ports.ObjectStore`: a directory, S3, GCS, HDFS.

`urls.open_object_store` makes one of a URL. A caller holds the store of its kind (`local.py`, `remote.py`, `hdfs.py`)
within four of the `guards/`, each of which does one thing to every request: `metered.py` counts it, `breaker.py` fails
it at once while the store is down, `in_flight.py` bounds how many there are, `retries.py` sends it again.
"""
