"""The settings with which a Kafka client is let in, besides addresses: TLS, who it is, and how it shows that.

Settings have librdkafka's names (`security.protocol`, `ssl.ca.location`, `sasl.username`). They come from a file of
properties, as kcat and other clients of librdkafka take them, or from a profile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mainstem.cli.errors import SettingsUnusable

FILE_BYTES_MAX = 1024 * 1024
"""A file of properties with keys and certificates in it has some thousand bytes."""

BOOTSTRAP_KEY = "bootstrap.servers"

_CONNECTION = (
    "security.protocol", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.", "socket.", "broker.address.",
    "client.id", "client.rack",
)  # fmt: skip
_SECRET = re.compile(r"password|secret|token(?!\.endpoint)|\.pem$|\.key$|jaas|credential")
_NOT_SECRET = re.compile(r"\.location$|\.url$")
MASK = "********"


class Bootstrap(str):
    """Addresses of a cluster, HOST:PORT separated by commas, with the settings that a client connects with."""

    settings: Mapping[str, str]

    def __new__(cls, addresses: str, settings: Mapping[str, str]) -> Bootstrap:
        made = super().__new__(cls, addresses)
        made.settings = settings
        return made


class HttpAddress(str):
    """HOST:PORT of a node's HTTP port, with what a visitor is let in with."""

    over_tls: bool
    settings: Mapping[str, str]

    def __new__(cls, address: str, settings: Mapping[str, str], *, over_tls: bool = False) -> HttpAddress:
        made = super().__new__(cls, address)
        made.settings, made.over_tls = settings, over_tls
        return made

    @property
    def url(self) -> str:
        return f"{'https' if self.over_tls else 'http'}://{self}"

    def beside(self, address: str) -> HttpAddress:
        """Another node of the same cluster."""
        return HttpAddress(address, self.settings, over_tls=self.over_tls)


def http_address(address: str) -> HttpAddress:
    """The address as it is; plain text is that of a port without TLS, which asks nobody."""
    return address if isinstance(address, HttpAddress) else HttpAddress(address, {})


def settings_of(bootstrap: str) -> Mapping[str, str]:
    """The settings that a client connects with; none if the addresses are plain text."""
    return bootstrap.settings if isinstance(bootstrap, Bootstrap) else {}


def connects(key: str) -> bool:
    """Whether a setting says how to connect, rather than what a producer or a consumer does then."""
    return key.startswith(_CONNECTION)


def is_secret(key: str) -> bool:
    """Whether the value of a setting is for nobody's eyes."""
    return bool(_SECRET.search(key)) and not _NOT_SECRET.search(key)


def masked(settings: Mapping[str, str]) -> dict[str, str]:
    return {key: MASK if is_secret(key) else value for key, value in settings.items()}


def properties(path: Path) -> dict[str, str]:
    """A file of properties: `key=value` on each line, `#` before comments. Raises SettingsUnusable naming the line."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        text = content.decode()
    except OSError as error:
        raise SettingsUnusable(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsUnusable(f"{path}: not UTF-8") from None
    if len(content) > FILE_BYTES_MAX:
        raise SettingsUnusable(f"{path}: more than {FILE_BYTES_MAX} bytes; this is no file of client settings")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            raise SettingsUnusable(f"{path}: line {number} is not KEY=VALUE")  # not the line: it may be half a secret
        found[key.strip()] = value.strip()
    return found
