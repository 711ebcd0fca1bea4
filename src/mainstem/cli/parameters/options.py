"""Options that several commands share, so that they read and behave the same everywhere.

Every command that talks to a node takes both addresses and `--profile`, so that a script passes the same everywhere. A
command that needs only one of the addresses accepts the other one and says in its help that it ignores it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from mainstem.address import AddressError, parsed
from mainstem.cli.clients.client_settings import Bootstrap, HttpAddress
from mainstem.cli.parameters.profiles import ClusterOption, client_config_option, client_settings_of, profile_option
from mainstem.quantities import bytes_of, milliseconds_of

if TYPE_CHECKING:
    OptionType = click.ParamType
else:

    class OptionType(click.ParamType):
        """The base of our own types of options: `click.ParamType`, which newer versions of click have as a generic
        class. `OptionType[int]` tells type checkers what an option becomes; at run time it is the class alone."""

        def __class_getitem__(cls, kind: Any) -> type[OptionType]:
            return cls


DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_HTTP = "127.0.0.1:9080"

_IGNORED = "Accepted for scripting and ignored: "

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class AddressType(OptionType[str]):
    """One HOST:PORT, or with `many` several of them, separated by commas; as text that is known to be right. Several
    are those of a cluster: with them comes what a client is let in with."""

    name = "HOST:PORT"

    def __init__(self, *, many: bool = False) -> None:
        self._many = many

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> str:
        texts = str(value).split(",") if self._many else [str(value)]
        try:
            addresses = ",".join(str(parsed(text.strip())) for text in texts)
        except AddressError as error:
            self.fail(str(error), param, context)
        return Bootstrap(addresses, client_settings_of(context)) if self._many else addresses


class HttpAddressType(OptionType[str]):
    """HOST:PORT of an HTTP port, or https://HOST:PORT where it speaks TLS, with what a visitor is let in with."""

    name = "HOST:PORT"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> HttpAddress:
        if isinstance(value, HttpAddress):
            return value
        scheme, separator, address = str(value).rpartition("://")
        if separator and scheme not in ("http", "https"):
            self.fail(f"{value}: it takes HOST:PORT or https://HOST:PORT", param, context)
        try:
            place = str(parsed(address.rstrip("/")))
        except AddressError as error:
            self.fail(str(error), param, context)
        return HttpAddress(place, client_settings_of(context), over_tls=scheme == "https")


class SizeType(OptionType[int]):
    """Bytes: a number, or text such as 256MB. `least` and `most` are allowed."""

    name = "SIZE"

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        try:
            count = value if isinstance(value, int) else bytes_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, context)
        if not self._least <= count <= self._most:
            self.fail(f"{value} is not in the range {self._least}<=x<={self._most}", param, context)
        return count


class SecondsType(OptionType[float]):
    """Seconds: a number, or a duration such as 500ms. `least` and `most` are allowed."""

    name = "DURATION"

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        text = str(value)
        try:
            seconds = float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else milliseconds_of(text) / 1000
        except ValueError as error:
            self.fail(str(error), param, context)
        if not self._least <= seconds <= self._most:
            self.fail(f"{value} is not in the range {self._least:g}s<=x<={self._most:g}s", param, context)
        return seconds


def _bootstrap(**more: Any) -> Decorator:
    return click.option("--bootstrap", type=AddressType(many=True), metavar="HOST:PORT", cls=ClusterOption, **more)


def _http(**more: Any) -> Decorator:
    return click.option("--http", type=HttpAddressType(), metavar="HOST:PORT", cls=ClusterOption, **more)


_bootstrap_used = _bootstrap(
    default=DEFAULT_BOOTSTRAP, needed=True, show_default=True, envvar="MAINSTEM_BOOTSTRAP",
    help="Kafka address of any node, or of several, separated by commas.",
)  # fmt: skip
_http_used = _http(
    default=DEFAULT_HTTP,
    needed=True,
    show_default=True,
    envvar="MAINSTEM_HTTP",
    help="HTTP address of a node.",
)
_profile = profile_option(falls_back=True)
_client_config = client_config_option(
    help="Have clients connect as this file of properties says: TLS, SASL, and bootstrap.servers if it is there."
)
_http_client_config = client_config_option(
    help="Show who you are, and check the node's certificate, as this file of properties says (sasl.*, ssl.*)."
)
_no_client_config = client_config_option(used=False, help=_IGNORED + "this command has no Kafka client.")


def kafka_only(command: Callable[..., Any]) -> Callable[..., Any]:
    """`bootstrap` for the command; `--http` is accepted and not used."""
    unused = _http(expose_value=False, help=_IGNORED + "this command asks over Kafka alone.")
    return _bootstrap_used(unused(_profile(_client_config(command))))


def http_only(command: Callable[..., Any]) -> Callable[..., Any]:
    """`http` for the command; `--bootstrap` is accepted and not used."""
    unused = _bootstrap(expose_value=False, help=_IGNORED + "this command asks over HTTP alone.")
    return _http_used(unused(_profile(_http_client_config(command))))


_ASKS_NO_NODE = _IGNORED + "this command asks no node."


def neither(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--bootstrap`, `--http` and `--profile` are accepted and not used."""
    return _http(expose_value=False, help=_ASKS_NO_NODE)(no_bootstrap(command))


def no_bootstrap(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--bootstrap` and `--profile` are accepted and not used."""
    return _bootstrap(expose_value=False, help=_ASKS_NO_NODE)(no_profile(_no_client_config(command)))


def no_profile(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--profile` is accepted and not used."""
    return click.option("--profile", metavar="NAME", expose_value=False, help=_ASKS_NO_NODE)(command)


def both(command: Callable[..., Any]) -> Callable[..., Any]:
    """`bootstrap` and `http` for the command."""
    return _bootstrap_used(_http_used(_profile(_client_config(command))))


def both_if_named(*, bootstrap_help: str, http_help: str) -> Decorator:
    """`bootstrap` and `http` for a command that asks a node only where one is named; else None."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        profile = profile_option(falls_back=False)
        return _http(help=http_help)(_bootstrap(help=bootstrap_help)(profile(_client_config(command))))

    return decorated


as_json = click.option("--json", "as_json", is_flag=True, help="Print data instead of text.")

token = click.option(
    "--token", metavar="TOKEN", envvar="MAINSTEM_TOKEN", cls=ClusterOption,
    help="The node's token. Default: the command reads it from the node's write_dir where that is on this host.",
)  # fmt: skip

configs = click.option(
    "-c", "--config", "--set", "configs", metavar="KEY=VALUE", multiple=True,
    help="Set a topic config, for example retention.ms=7d or retention.bytes=10GB; repeatable.",
)  # fmt: skip


def partitions(help: str) -> Decorator:
    """`partitions` for the command: the partitions of a topic that it is about; none: all."""
    return click.option(
        "-p", "--partition", "partitions", type=click.IntRange(min=0), metavar="N", multiple=True, help=help
    )


def acks(what: str, when: str) -> Decorator:
    """`acks` for the command: as Kafka's clients have it."""
    return click.option(
        "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True,
        help=f"Who must have a {what} before it {when}: nobody, the leader, or a majority.",
    )  # fmt: skip


def pairs(assignments: tuple[str, ...], option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping. Raises click.BadParameter naming the option."""
    found = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{assignment!r} is not KEY=VALUE", param_hint=option)
        found[key] = value
    return found


def topic_configs(assignments: tuple[str, ...]) -> dict[str, str]:
    """Topic configs, with sizes and durations as the numbers that Kafka's protocol has. Raises click.BadParameter."""
    return {key: _in_unit(key, value) for key, value in pairs(assignments, "--set").items()}


def _in_unit(key: str, value: str) -> str:
    """`7d` of a config in milliseconds and `10GB` of one in bytes as numbers; everything else is for the node to
    judge."""
    read = milliseconds_of if key.endswith(".ms") else bytes_of if key.endswith(".bytes") else None
    if read is None or not re.match(r"\d+(\.\d+)? ?[A-Za-z]", value):
        return value
    try:
        return str(read(value))
    except ValueError as error:
        raise click.BadParameter(f"{key}: {error}", param_hint="--set") from None
