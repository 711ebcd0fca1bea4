"""Reading a node's configuration from its sources, with errors that name the place to correct.

Strategy: every source (file, environment, flags) is taken apart into single settings, each with its origin.
A setting is checked against the field it names as soon as it is read, so that an error can say which file,
variable or flag is wrong and what it takes. The structs are built once, from the settings of the highest
precedence: `mainstem.toml` < `MAINSTEM_*` variables < flags < `--set`. Settings under Kafka's names become ours before
that (`kafka_names.py`); both for one thing are refused, since nobody can say which is meant.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from mainstem.errors import ConfigError
from mainstem.node.config import NODE_WIDE, NodeConfig
from mainstem.node.kafka_names import Given, is_kafkas, properties, translated
from mainstem.quantities import bytes_of

DEFAULT_FILE = "mainstem.toml"
"""Read from the working directory if it is there and no other file is given."""

PROPERTIES = ".properties"
"""Files so named are in the form of Kafka's `server.properties`, under Kafka's names and ours."""

VARIABLE_PREFIX = "MAINSTEM_"
OTHER_VARIABLES = frozenset(
    {
        "MAINSTEM_CONFIG", "MAINSTEM_BOOTSTRAP", "MAINSTEM_BOOTSTRAP_PASSWORD", "MAINSTEM_CLIENT_CONFIG",
        "MAINSTEM_HTTP", "MAINSTEM_KERNEL", "MAINSTEM_LOOP", "MAINSTEM_PROFILE", "MAINSTEM_PROFILES", "MAINSTEM_TOKEN",
    }
)  # fmt: skip
"""Variables for the command line itself. `MAINSTEM_HTTP` is the node that commands ask: were it the key `http` as well,
a node that is started in the same shell would listen at another node's address."""
_KUBERNETES_VARIABLE = re.compile(r"MAINSTEM_(SERVICE_HOST|SERVICE_PORT.*|PORT|PORT_\d+_.*)")
"""Kubernetes gives these to every pod beside a service called `mainstem`; they are not settings."""


class Setting(NamedTuple):
    """One value from one source. `text` marks values that came as text and are still to be read as a type."""

    path: tuple[str, ...]
    """(key,) or (section, key) or (section, key, key of a table)."""
    value: object
    origin: str
    """The source that an error names: a file, a variable or a flag."""
    text: bool


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str],
    flags: Mapping[str, str | None],
    assignments: Sequence[str] = (),
) -> NodeConfig:
    """Read all sources and build the configuration. Raises ConfigError.

    `file` must exist when it is given; otherwise `MAINSTEM_CONFIG`, otherwise `mainstem.toml` if it is there.
    `flags` maps node-wide keys to text (None: flag not given); `assignments` are `--set` values, `key=value`.
    """
    chosen: dict[tuple[str, ...], Setting] = {}
    sources = (
        *_from_file(_file_to_read(file, environment)),
        *_from_environment(environment),
        *_from_flags(flags),
        *map(_from_assignment, assignments),
    )
    kafkas: dict[str, Given] = {}
    for setting in sources:
        if is_kafkas(dotted := ".".join(setting.path)):
            kafkas[dotted] = Given(_kafkas_text(setting, dotted), setting.origin)
        else:
            checked = _checked(setting)
            chosen[checked.path] = checked
    for path, value, origin in translated(kafkas):
        _refuse_both(path, origin, chosen)
        checked = _checked(Setting(path, value, origin, isinstance(value, str)))
        chosen[checked.path] = checked
    return _built(chosen)


def _kafkas_text(setting: Setting, name: str) -> str:
    """Lists of TOML are as good as texts with commas."""
    match setting.value:
        case str(text):
            return text.strip()
        case bool(value):
            return str(value).lower()
        case int(number):
            return str(number)
        case list(values) if all(isinstance(value, str) for value in values):
            return ",".join(values)
    raise ConfigError(f"{setting.origin}: {name} = {setting.value!r}: it takes text, as in Kafka")


def _refuse_both(path: tuple[str, ...], origin: str, chosen: Mapping[tuple[str, ...], Setting]) -> None:
    for other, setting in chosen.items():
        if path[: len(other)] == other or other[: len(path)] == path:
            raise ConfigError(f"{origin} and {'.'.join(other)} ({setting.origin}) set the same; leave one out")


def sections() -> dict[str, type[msgspec.Struct]]:
    """The config struct of every section, by the section's name."""
    return {name: kind for name, kind in _field_types(NodeConfig).items() if _is_struct(kind)}


def _file_to_read(file: Path | None, environment: Mapping[str, str]) -> Path | None:
    if file is not None:
        return file
    if named := environment.get("MAINSTEM_CONFIG"):
        return Path(named)
    default = Path(DEFAULT_FILE)
    return default if default.exists() else None


def _from_file(file: Path | None) -> Iterator[Setting]:
    if file is None:
        return
    try:
        text = file.read_text("utf-8")
        if file.suffix == PROPERTIES:
            for name, given in properties(text).items():
                yield Setting(tuple(name.split(".", 2)), given, str(file), True)
            return
        content = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from None
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    known = sections()
    for key, value in content.items():
        if key in known:
            if not isinstance(value, dict):
                raise ConfigError(f"{file}: {key} = {value!r}: this is a section, written [{key}]")
            for inner, inner_value in value.items():
                yield Setting((key, inner), inner_value, str(file), False)
        else:
            yield Setting((key,), value, str(file), False)


def _from_environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    for name in sorted(environment):
        foreign = name in OTHER_VARIABLES or _KUBERNETES_VARIABLE.fullmatch(name)
        if foreign or not name.startswith(VARIABLE_PREFIX):
            continue
        path = tuple(name.removeprefix(VARIABLE_PREFIX).lower().split("__", 1))
        yield Setting(path, environment[name], name, True)


def _from_flags(flags: Mapping[str, str | None]) -> Iterator[Setting]:
    for key, value in flags.items():
        if value is not None:
            yield Setting((key,), value, f"--{key.replace('_', '-')}", True)


def _from_assignment(assignment: str) -> Setting:
    key, equals, value = assignment.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {assignment}: it takes key=value, for example storage.write_cache_bytes=0")
    # Two dots at most: what follows the field of a table is a key of that table and may hold dots itself.
    return Setting(tuple(key.strip().split(".", 2)), value, f"--set {key.strip()}", True)


def _checked(setting: Setting) -> Setting:
    """The setting with its value read as the type of the field it names. Raises ConfigError."""
    kind = _type_of(setting)
    value = setting.value
    if setting.text:
        value = _structured(typing.cast(str, value), kind)
    elif isinstance(value, str) and _is_sequence(kind):
        value = [value]
    if isinstance(value, str) and _is_size(setting.path, kind) and not re.fullmatch(r"-?\d+", value):
        try:
            value = bytes_of(value)
        except ValueError as error:
            raise ConfigError(f"{setting.origin}: {'.'.join(setting.path)}: {error}") from None
    try:
        value = msgspec.convert(value, kind, strict=not setting.text)
    except msgspec.ValidationError as error:
        why = f" ({error})" if _holds_structs(kind) else ""
        raise ConfigError(
            f"{setting.origin}: {'.'.join(setting.path)} = {setting.value!r}: it takes {_described(kind)}{why}"
        ) from None
    return setting._replace(value=value)


def _type_of(setting: Setting) -> Any:
    """The type of the field that a setting's path leads to. Raises ConfigError when it leads nowhere."""
    dotted = ".".join(setting.path)
    if setting.path in NODE_WIDE:
        raise ConfigError(f"{setting.origin}: {dotted} is set by the node's key {NODE_WIDE[setting.path]}")
    fields = _field_types(NodeConfig)
    kind = fields.get(setting.path[0])
    if kind is None:
        inside = (f"{section}.{key}" for section, inner in sections().items() for key in _field_types(inner))
        suggestion = _suggestion(dotted, [*fields, *inside])
        raise ConfigError(f"{setting.origin}: unknown key {dotted}{suggestion}")
    if not _is_struct(kind):
        if len(setting.path) > 1:
            raise ConfigError(f"{setting.origin}: {dotted}: {setting.path[0]} is a value and has no keys")
        return kind
    keys = _field_types(kind)
    if len(setting.path) == 1:
        example = f"{dotted}.{next(iter(keys))}"
        raise ConfigError(f"{setting.origin}: {dotted} is a section; name a key in it, for example {example}")
    section, key, *rest = setting.path
    if key not in keys:
        suggestion = _suggestion(key, keys, prefix=section + ".")
        raise ConfigError(f"{setting.origin}: unknown key {dotted}{suggestion}")
    if not rest:
        return keys[key]
    if typing.get_origin(keys[key]) is not dict:
        raise ConfigError(f"{setting.origin}: {dotted}: {section}.{key} is a value and has no keys")
    return typing.get_args(keys[key])[1]


def _built(chosen: Mapping[tuple[str, ...], Setting]) -> NodeConfig:
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {name: {} for name in sections()}
    # Whole tables come before their single keys: the same order as the number of parts in the path.
    for path, setting in sorted(chosen.items(), key=lambda item: len(item[0])):
        match path:
            case (key,):
                own[key] = setting.value
            case (section, key):
                inner[section][key] = setting.value
            case (section, key, table_key):
                inner[section][key] = {**inner[section].get(key, {}), table_key: setting.value}
    defaults = NodeConfig()
    for (section, key), source in NODE_WIDE.items():
        inner[section][key] = own.get(source, getattr(defaults, source))
    built: dict[str, Any] = {name: kind(**inner[name]) for name, kind in sections().items()}
    config = NodeConfig(**own, **built)
    _validate(config, chosen)
    return config


def _validate(config: NodeConfig, chosen: Mapping[tuple[str, ...], Setting]) -> None:
    try:
        config.validate()
    except ConfigError as error:
        raise ConfigError(str(error) + _origins(str(error), chosen, None)) from None
    for section in sections():
        try:
            getattr(config, section).validate()
        except ConfigError as error:
            message = str(error)
            named = message if message.startswith(section) else f"{section}: {message}"
            raise ConfigError(named + _origins(message, chosen, section)) from None


def _origins(message: str, chosen: Mapping[tuple[str, ...], Setting], section: str | None) -> str:
    """For the end of a section's error message: where the keys that it names were set."""
    words = set(re.findall(r"\w+", message))
    places = []
    for path, setting in chosen.items():
        key = path[0] if section is None or len(path) == 1 else path[1]
        if key in words and (len(path) == 1 or path[0] == section):
            places.append(f"{'.'.join(path)} is set by {setting.origin}")
    return f" ({'; '.join(places)})" if places else ""


def _field_types(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _holds_structs(kind: Any) -> bool:
    """Whether a field is a table with known keys, or a table of such."""
    return _is_struct(kind) or any(map(_is_struct, typing.get_args(kind)))


def _is_size(path: Sequence[str], kind: Any) -> bool:
    """Whether a field counts bytes, so that it may be written as 256MB: by its name, where the unit stands."""
    return "bytes" in path[-1].split("_") and (kind is int or int in typing.get_args(kind))


def _is_sequence(kind: Any) -> bool:
    return typing.get_origin(kind) in (tuple, list, frozenset)


def _structured(text: str, kind: Any) -> object:
    """Text of a variable or flag as the plain value its type is converted from: lists are comma-separated,
    tables are JSON objects; everything else stays text, which the conversion reads."""
    if _is_sequence(kind):
        return [part.strip() for part in text.split(",") if part.strip()]
    if typing.get_origin(kind) is dict or _is_struct(kind):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    if text == "null" and type(None) in typing.get_args(kind):
        return None
    return text


_PLAIN_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


def _described(kind: Any) -> str:
    if kind in _PLAIN_WORDS:
        return _PLAIN_WORDS[kind]
    if isinstance(kind, type) and hasattr(kind, "__members__"):
        return "one of " + ", ".join(str(member.value) for member in kind.__members__.values())
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_described(argument) for argument in arguments)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin is dict or _is_struct(kind):
        return "a table (as text: a JSON object)"
    if _is_sequence(kind):
        return "a list (as text: separated by commas)"
    return str(kind)


def _suggestion(word: str, candidates: Iterable[str], prefix: str = "") -> str:
    known = list(candidates)
    if close := difflib.get_close_matches(word, known, n=1, cutoff=0.6):
        return f"; did you mean {prefix}{close[0]}?"
    return f"; known are {', '.join(prefix + name for name in known if '.' not in name)}"
