from libc.stdint cimport int32_t, int64_t

from mainstem.kernel.compiled.fetch_rows cimport Answer

cdef list write_fetch_response(
    int version, int32_t correlation_id, int32_t session_id, const Answer *answer, list keys, object codes,
    bint read_committed, int32_t throttle_ms,
)

cdef list write_fetch_topics(int version, const Answer *answer, list keys, object codes, bint read_committed)

cdef int64_t key_bytes(object key, int version) except -1
