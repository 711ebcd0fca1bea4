from libc.stdint cimport int32_t

from mainstem.kernel.compiled.layout cimport Batch

cdef bytes encode_responses(
    int version, list requests, list topics, const Batch *batches, Py_ssize_t batch_count, object errors,
    int32_t throttle_ms
)
"""The frames of the responses, one behind the other. `requests` has the correlation id and the number of topics of
each; `topics` has tuples that begin with the key and the number of batches of each topic, `batch_count` in all;
`errors` is the table of the twin."""

cdef object codes_of(const Batch *batches, Py_ssize_t batch_count, object errors)
"""The error codes of the response that are not 0, in order."""
