"""The settings of the audit."""

from __future__ import annotations

import msgspec

from mainstem.errors import ConfigError

AUTHENTICATION, DENIED, ADMIN, DATA = "authentication", "denied", "admin", "data"
FORWARDED = "forwarded"
EVENTS = (AUTHENTICATION, DENIED, ADMIN, DATA, FORWARDED)


class AuditConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The events that are recorded, and where. `validate` raises ConfigError."""

    enabled: bool = False
    """Whether anything is recorded."""

    events: tuple[str, ...] = (AUTHENTICATION, DENIED, ADMIN)
    """Kinds of events: `authentication`, `denied`, `admin` (what changes topics, configs, rules, users, quotas, groups
    and records), `data` (the first Produce and Fetch of a session for each topic; takes an authorizer), `forwarded`
    (changes that this node makes for clients of other nodes, which record them as `admin`)."""

    topic: bool = True
    """Whether records go to the internal topic `__audit`."""

    file: str = ""
    """A file that records go to as well, a line of JSON each; empty: none."""

    file_bytes_max: int = 100 * 1024 * 1024
    """A file that has become larger is renamed, and a new one begun."""

    files_max: int = 10
    """Files that are kept, the present one included."""

    records_per_second: int = 100
    """Records of a kind beyond this rate are dropped, and counted. Of each kind, those of refusals have a rate of their
    own."""

    def validate(self) -> None:
        for event in self.events:
            if event not in EVENTS:
                raise ConfigError(f"events: {event!r} is none; there are {', '.join(EVENTS)}")
        for name, (smallest, largest) in _BOUNDS.items():
            value = getattr(self, name)
            if not smallest <= value <= largest:
                raise ConfigError(f"{name} = {value} is out of range; it is {smallest} to {largest}")
        if self.enabled and not self.topic and not self.file:
            raise ConfigError("enabled = true, with neither topic nor file: records would go nowhere")


_BOUNDS = {"file_bytes_max": (1024, 2**40), "files_max": (1, 1_000), "records_per_second": (1, 100_000)}
