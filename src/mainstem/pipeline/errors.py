"""The pipeline's errors, the ways in which a splitter ends, and the exit codes of its process."""

from __future__ import annotations

import enum

from mainstem.errors import MainstemError


class PipelineError(MainstemError):
    """Base of the pipeline's errors."""


class SplitServiceUnreachable(PipelineError):
    """The node's HTTP address does not answer with the address of its split service."""


class SliceDamaged(PipelineError):
    """The journal bytes of a slice do not match its ranges; no part of it was split."""

    def __init__(self, message: str, position: int = 0) -> None:
        """`position`: where in the journal a block is damaged; 0: the fault is not in a block."""
        super().__init__(message)
        self.position = position


class SplitRefused(PipelineError):
    """The node refused a split: it no longer continues what the manifest holds."""


class NamesRefused(PipelineError):
    """The node did not announce files that were about to be written to the shared store; none was written."""


class MergeFailed(PipelineError):
    """A merge was given up; the queue store is as it was."""


class UploadFailed(PipelineError):
    """Files were not uploaded to the remote tier; what counts is as it was."""


class ArchiveNotWritten(PipelineError):
    """The archive of Spark's classes could not be written; splitters start without it, slower."""


class JavaMissing(PipelineError):
    """Spark cannot run here; the message says what to install."""


class Ended(enum.Enum):
    """Why a splitter ended, other than by an error."""

    DONE = "all that was there at the start is done"
    STOPPED = "asked to stop"
    YIELDED = "another splitter asked for the lease"
    LEASE_LOST = "the lease was lost"


EXIT_DONE = 0
"""All is split (`--once`), or the splitter was asked to stop."""
EXIT_FAILED = 1
EXIT_LEASE_HELD = 3
"""Another splitter holds the lease, or took it."""
EXIT_YIELDED = 4
"""The splitter gave the lease to another one that waited for it."""
