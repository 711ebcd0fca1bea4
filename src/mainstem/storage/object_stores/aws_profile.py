"""Credentials of a profile in the files that the AWS command line keeps: obstore does not read them.

They are looked for where other tools look, in their order: keys in `AWS_*` variables, and a web identity, go before a
profile; containers' and instances' own credentials come behind it. The profile is the one that `AWS_PROFILE` names, or
else `default`. A profile with keys is read again every few minutes, so that keys which were changed in the file are
taken. One that gets its keys otherwise (a role, SSO, a process) is refused if it was named.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mainstem.errors import ConfigError

VALID_SECONDS = 900
"""For so long keys are said to be valid, and obstore asks for them again five minutes before that ends: those that are
rotated stay valid beside each other for longer than ten minutes."""

GO_BEFORE = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")

REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")

DEFAULT = "default"


class AwsProfile:
    """A credential provider, as obstore calls it; `config` has options that come from the profile besides."""

    def __init__(self, name: str, credentials: Path, config: dict[str, Any]) -> None:
        self._name = name
        self._credentials = credentials
        self.config = config

    def __call__(self) -> dict[str, Any]:
        """The keys as the file has them now. Raises `ConfigError`."""
        section = _section(self._credentials, self._name)
        key, secret = section.get("aws_access_key_id"), section.get("aws_secret_access_key")
        if not key or not secret:
            raise ConfigError(_without_keys(self._name, self._credentials))
        return {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": section.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + timedelta(seconds=VALID_SECONDS),
        }


def aws_profile(environment: Mapping[str, str], options: Mapping[str, str]) -> AwsProfile | None:
    """The profile to take credentials from; None: they come from elsewhere. `options`: of the store. Raises
    `ConfigError` for a profile that was named and has no keys, saying what to do."""
    if any(environment.get(name) for name in GO_BEFORE) or _has_credentials(options):
        return None
    home = Path(environment.get("HOME", "~")) / ".aws"
    credentials = _expanded(environment.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"))
    config = _expanded(environment.get("AWS_CONFIG_FILE", home / "config"))
    named = environment.get("AWS_PROFILE")
    name = named or DEFAULT
    found = _section(credentials, name)
    if not found.get("aws_access_key_id") or not found.get("aws_secret_access_key"):
        if named:
            raise ConfigError(_without_keys(name, credentials))
        return None
    settings = _section(config, name if name == DEFAULT else f"profile {name}")
    is_set = any(environment.get(variable) for variable in REGIONS) or _names(options) & {"region", "default_region"}
    region = None if is_set else settings.get("region") or found.get("region")
    return AwsProfile(name, credentials, {"region": region} if region else {})


def _expanded(path: Path | str) -> Path:
    """The path with the user's home in place of `~`; as it is where the system knows of none, as of some containers'
    users."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _has_credentials(options: Mapping[str, str]) -> bool:
    return bool(_names(options) & {"access_key_id", "skip_signature", "web_identity_token_file"})


def _names(options: Mapping[str, str]) -> set[str]:
    """The names of options, which obstore takes with `aws_` in front as well."""
    return {name.lower().removeprefix("aws_") for name in options}


def _section(path: Path, name: str) -> Mapping[str, str]:
    """Empty where there is none."""
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
    except (configparser.Error, UnicodeDecodeError) as error:
        said = str(error).splitlines()[0]  # the others, and so the error itself, show what is in the file
        raise ConfigError(f"{path}: cannot be read as a file of profiles: {said}") from None
    return dict(parser[name]) if parser.has_section(name) else {}


def _without_keys(name: str, credentials: Path) -> str:
    return (
        f"AWS_PROFILE: {credentials} has no aws_access_key_id and aws_secret_access_key of a profile {name}. A profile "
        "with a role, SSO or a process is not asked: set what `aws configure export-credentials --format env` prints, "
        "or give the machine a role"
    )
