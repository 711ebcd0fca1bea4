"""TLS for connections that the command line makes without librdkafka, by librdkafka's settings."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path

from mainstem.cli.errors import SettingsUnusable

_KNOWN = frozenset(
    {
        "ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password",
        "ssl.endpoint.identification.algorithm",
    }
)  # fmt: skip
_VERIFICATION = "enable.ssl.certificate.verification"


def context_of(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    """How connections are encrypted; None: they are not. Raises SettingsUnusable; also for settings of TLS that it does
    not know, rather than connect otherwise than they say."""
    if settings.get("security.protocol", "plaintext").lower() not in ("ssl", "sasl_ssl"):
        return None
    if unknown := sorted(key for key in settings if key.startswith("ssl.") and key not in _KNOWN):
        raise SettingsUnusable(f"{unknown[0]}: this command has no use for it; known are {', '.join(sorted(_KNOWN))}")
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        made.check_hostname = False
    if settings.get(_VERIFICATION, "true").lower() in ("false", "0", "f"):
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    what = "ssl.ca.location"
    try:
        if authorities := settings.get(what):
            directory = Path(authorities).is_dir()
            made.load_verify_locations(**{"capath" if directory else "cafile": authorities})
        else:
            made.load_default_certs()
        if certificate := settings.get("ssl.certificate.location"):
            what = "ssl.certificate.location with ssl.key.location"
            password = settings.get("ssl.key.password", "")
            made.load_cert_chain(certificate, settings.get("ssl.key.location"), lambda: password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise SettingsUnusable(f"{what} cannot be used: {error}") from None
    return made
