"""The errors that object stores report, whatever their kind.

The caller of `ports.ObjectStore` has to tell three things apart: the store has answered, and the answer is no (an
object is absent, exists, has changed); the store refuses this caller, so that trying again helps nobody; or the store
is out (`ObjectStoreOutage`), which passes, and which leaves open whether the request was done.
"""

from __future__ import annotations

from mainstem.storage.errors import OutOfReach, StorageError


class ObjectStoreError(StorageError):
    """Base of the errors of object stores. The message names the store, the object and the remedy."""


class ObjectAbsent(ObjectStoreError):
    """There is no object of this name. Never raised when the bucket is gone, or a local store's directory."""


class ObjectExists(ObjectStoreError):
    """There is an object of this name already, so that it was not created."""


class ObjectChanged(ObjectStoreError):
    """The object is not the one that was to be replaced, or is gone. Nothing was written."""


class ObjectTooShort(ObjectStoreError):
    """The object ends before the bytes that were asked for do."""


class ReplaceUnsupported(ObjectStoreError):
    """This kind of store cannot replace an object on condition that nobody else has."""


class ObjectStoreRefused(ObjectStoreError, OutOfReach):
    """The store does not take requests of this caller: wrong credentials, missing rights, a clock that is off, or a
    bucket that does not exist."""


class ObjectStoreOutage(ObjectStoreError, OutOfReach):
    """Base of the errors that pass. A write may or may not have been done."""


class ObjectStoreThrottled(ObjectStoreOutage):
    """The store asks for fewer requests (503 SlowDown, 429). The request was not done."""


class ObjectStoreUnavailable(ObjectStoreOutage):
    """The store cannot be reached, or answers with an error of its own."""


class ObjectStoreTimedOut(ObjectStoreOutage):
    """The store did not answer within the time that a request may take."""


class ObjectStoreDown(ObjectStoreOutage):
    """The store has failed again and again, and is left alone until a probe succeeds. No request was sent."""
