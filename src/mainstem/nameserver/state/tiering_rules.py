"""Kafka's rules for the configs of topics with a remote tier: what may be switched on and off, and which limits go
together.

They are checked before a change is logged, by the settings that the topic would have over the defaults of the node that
leads the metadata. A change that was logged is applied whatever they say.
"""

from __future__ import annotations

from mainstem.model import TopicSettings
from mainstem.nameserver.errors import InvalidConfig

REMOTE = "remote.storage.enable"

TOPIC_BY_TOPIC = (REMOTE, "remote.log.copy.disable", "remote.log.delete.on.disable")
"""Configs that no default can give to topics: as in Kafka, none has a broker's config of the same meaning."""

AS_WHOLE = -2
"""A local limit that is the same as the whole topic's."""

UNLIMITED = -1


def check_tiering(settings: TopicSettings, before: TopicSettings | None, *, has_store: bool) -> None:
    """Raise `InvalidConfig` where a topic's settings break a rule. `before`: those that it has; None: it is new.
    `has_store`: whether the cluster has a remote tier."""
    if not settings.remote_storage_enable:
        if before is not None and before.remote_storage_enable and not settings.remote_log_delete_on_disable:
            raise InvalidConfig(
                f"{REMOTE} cannot be switched off while what is in the remote tier is kept: to copy nothing more, "
                "leave it true and set remote.log.copy.disable=true; to delete what is there alone, set "
                f"{REMOTE}=false and remote.log.delete.on.disable=true together"
            )
        return
    if not has_store:
        raise InvalidConfig(
            f"{REMOTE}=true takes a remote tier, and this cluster has none: set remote_dir on all nodes. (With a "
            "shared store, all that is split is in the object store, whatever a topic's configs say: leave it out.)"
        )
    if settings.cleanup_policy != {"delete"}:
        raise InvalidConfig(
            f"{REMOTE}=true takes cleanup.policy=delete, and nothing else; it is "
            f"{','.join(sorted(settings.cleanup_policy)) or 'empty'}"
        )
    check_local_limits(settings)
    if settings.remote_log_copy_disable:
        for name, local, whole in _limits(settings):
            if local not in (AS_WHOLE, whole):
                raise InvalidConfig(
                    f"local.{name}={local} is not {name}={whole}: with remote.log.copy.disable=true nothing more goes "
                    f"to the remote tier, so that both must be the same (or local.{name}={AS_WHOLE})"
                )


def check_local_limits(settings: TopicSettings) -> None:
    """Raise `InvalidConfig` where more is to be kept locally than in all."""
    for name, local, whole in _limits(settings):
        if whole > UNLIMITED and local != AS_WHOLE and (local == UNLIMITED or local > whole):
            raise InvalidConfig(f"local.{name}={local} is more than {name}={whole}")


def _limits(settings: TopicSettings) -> tuple[tuple[str, int, int], ...]:
    """The name of each limit of the whole topic, and the local and the whole one."""
    return (
        ("retention.ms", settings.local_retention_ms, settings.retention_ms),
        ("retention.bytes", settings.local_retention_bytes, settings.retention_bytes),
    )
