"""Nanoseconds per batch of the kernel alone, compiled and pure, beside a plain C rendition of the same work.

Everything that happens to a batch between the socket's buffer and the disk, and back to the response: the walk of the
request, bounds, magic, CRC32C, counts; queue lookup; offset; the copy into the block; the directory row; the response;
and applying the block to the queue table and the index. Without the log write, which is a system call per turn.

    python -m bench.kernel
    python -m bench.kernel --queues 16 1000000 --batch-bytes 170 1024 --seconds 1 --json
"""
