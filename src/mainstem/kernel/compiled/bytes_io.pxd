"""Reading and writing numbers in memory that need not be aligned, the checksum, and memory. C inline functions only."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "crc32c.h" nogil:
    void ms_crc_prepare() noexcept
    uint32_t ms_crc32c(uint32_t crc, const uint8_t *p, size_t length) noexcept

cdef extern from "big_endian.h" nogil:
    uint16_t ms_read_u16(const uint8_t *p) noexcept
    uint32_t ms_read_u32(const uint8_t *p) noexcept
    uint64_t ms_read_u64(const uint8_t *p) noexcept
    void ms_write_u16(uint8_t *p, uint16_t value) noexcept
    void ms_write_u32(uint8_t *p, uint32_t value) noexcept
    void ms_write_u64(uint8_t *p, uint64_t value) noexcept
    void ms_prefetch(const void *p) noexcept

cdef extern from "memory.h":
    void *ms_take(size_t size) noexcept
    size_t ms_size_taken(size_t size) noexcept
    void ms_give(void *memory, size_t size) noexcept
