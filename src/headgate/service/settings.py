"""What can be set of the service: one table, from which flags, environment, file and documentation are made.

    headgate serve --workers 2         a flag
    HEADGATE_WORKERS=2                 the environment
    workers = 2                        a TOML file, named by --config or HEADGATE_CONFIG

A flag is stronger than the environment, which is stronger than the file. Each setting is written as text in all
three; numbers and lists of a TOML file are read as if they were. What is secret, and the engine, whose URL may
hold a password, can also stand in a file that the environment names: HEADGATE_ADMIN_TOKEN_FILE=/run/secrets/token.

Laws (tests/service/test_settings.py): whatever is set is used, or the service does not start: a name that is not
known, a value that cannot be read and a combination that is not safe are sentences. No secret is ever told.
"""

# ruff: noqa: RUF009 (_set is a field)
from __future__ import annotations

import os
import re
import secrets
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from headgate.algorithms.slots import Slots
from headgate.errors import HeadgateError, InvalidRule, InvalidSetting
from headgate.extras import ENVOY_MODULES, missing
from headgate.http.client_ip import Proxies
from headgate.limit_syntax import parse, parse_span
from headgate.rules.parsing import read_toml

ENVIRONMENT = "HEADGATE_"
OFF = "off"
_SAFE = 16  # characters of a secret
_EVERY = {"0.0.0.0", "::"}


class Address(NamedTuple):
    """Where to listen: a host and a port, or the path of a socket."""

    host: str
    port: int
    path: str | None = None

    @property
    def loopback(self) -> bool:
        """Whether nobody outside of this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def meets(self, other: Address) -> bool:
        """Whether not both can be listened at."""
        if self.path is not None or other.path is not None:
            return self.path == other.path
        every = _EVERY & {self.host, other.host}
        return self.port == other.port and (self.host == other.host or bool(every))

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address | None:
    """HOST:PORT, :PORT (everybody may come), unix:PATH, or off."""
    if text == OFF:
        return None
    if text.startswith("unix:") and len(text) > 5:
        return Address("", 0, text[5:])
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError("HOST:PORT, such as 127.0.0.1:8080, :8080 for every address, unix:PATH, or off")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    return Address(host or "0.0.0.0", int(port))


def whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return read


def duration_s(text: str) -> float:
    try:
        return parse_span(text) / 1_000_000
    except InvalidRule:
        raise ValueError("a length of time, such as 10s or 500ms") from None


def one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(" or ".join(words))
        return text

    return read


def comma_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def existing_file(text: str) -> Path | None:
    if not text:
        return None
    path = Path(text)
    if not path.is_file():
        raise ValueError("a file that is there")
    return path


def limit_or_off(text: str) -> str | None:
    if text == OFF:
        return None
    if isinstance(parse(text), Slots):
        raise ValueError("a limit of calls, such as 10000/s, or off")
    return text


class TrustedProxies(Proxies):
    """Proxies, and the words in which they were given."""

    def __init__(self, text: str) -> None:
        self._text = text
        super().__init__(comma_list(text))

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrustedProxies) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _set(default: str, read: Callable[[str], Any], metavar: str, about: str, secret: bool = False) -> Any:
    told = {"default": default, "read": read, "metavar": metavar, "about": about, "secret": secret}
    return field(default_factory=lambda: read(default), metadata=told)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How the service runs."""

    rules: str = _set(
        "",
        str,
        "FILE",
        "the rulebook: a file, also one of envoyproxy/ratelimit; or pushed, for what was pushed to the engine's "
        "server; unless given, a sample",
    )
    engine: str = _set("memory://", str, "URL", "where counts are kept: memory:// or redis://HOST:PORT/DB")
    prefix: str = _set("hg", str, "NAME", "what the names of all keys on the server begin with")
    http: Address | None = _set("127.0.0.1:8080", address, "ADDRESS", "where HTTP is answered, or off")
    grpc: Address | None = _set("127.0.0.1:8081", address, "ADDRESS", "where Envoy's gRPC is answered, or off")
    envoy_headers: str = _set(
        "on", one_of("on", OFF), "WORD", "whether Envoy is told header fields about limits: on or off"
    )
    envoy_names: str = _set(
        "on",
        one_of("on", OFF),
        "WORD",
        "whether statuses and header fields tell Envoy the names of limits: on or off",
    )
    admin: Address | None = _set("127.0.0.1:8082", address, "ADDRESS", "where operators are answered, or off")
    admin_token: str = _set(
        "", str, "TOKEN", "what operators must show; unless given, one is made up and printed at the start", True
    )
    workers: int = _set("1", whole_number(1, 256), "N", "processes that share the addresses; memory:// allows one")
    trusted: Proxies = _set(
        "127.0.0.0/8,::1,unix",
        TrustedProxies,
        "NETWORKS",
        "gateways whose word on a client's address and request is believed",
    )
    secret: str = _set(
        "",
        str,
        "TEXT",
        "signs receipts; unless given, one is made up at the start, and receipts are void after a restart",
        True,
    )
    tls_cert: Path | None = _set(
        "", existing_file, "FILE", "a certificate chain: HTTP and gRPC are answered over TLS"
    )
    tls_key: Path | None = _set("", existing_file, "FILE", "its key")
    tls_client_ca: Path | None = _set(
        "", existing_file, "FILE", "authorities of client certificates, which are then required"
    )
    drain: float = _set(
        "10s", duration_s, "SPAN", "how long calls under way may take when the service is told to stop"
    )
    own_limit: str | None = _set(
        "off", limit_or_off, "LIMIT", "how much each worker answers at most, in words; the rest gets 503"
    )
    body: int = _set("65536", whole_number(1024, 2**26), "BYTES", "the largest body that is read")
    batch: int = _set("100", whole_number(1, 10_000), "N", "the most checks in one request")
    log: str = _set("text", one_of("text", "json"), "FORM", "how log lines are written: text or json")
    log_level: str = _set(
        "info", one_of("debug", "info", "warning", "error"), "LEVEL", "what is logged: debug, info, warning, error"
    )

    def __post_init__(self) -> None:
        memory = self.engine.startswith("memory:")
        if memory and self.workers > 1:
            raise InvalidSetting(
                f"workers is {self.workers}, and the engine is memory://, which counts in each process for "
                f"itself: {self.workers} workers would let {self.workers} times the limit pass. Give a redis:// "
                "engine, or one worker."
            )
        if self.admin is not None and not self.admin.loopback and not self.admin_token:
            raise InvalidSetting(
                f"admin listens at {self.admin}, which can be reached from outside, and there is no admin_token. "
                "Set one, or listen at 127.0.0.1."
            )
        for name in ("admin_token", "secret"):
            if 0 < len(getattr(self, name)) < _SAFE:
                raise InvalidSetting(f"{name} is shorter than {_SAFE} characters: it could be guessed.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidSetting("tls_cert and tls_key belong together: one of them is missing.")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidSetting("tls_client_ca is of no use without tls_cert and tls_key.")
        if self.http is None and self.grpc is None:
            raise InvalidSetting("http and grpc are both off: there is nothing to answer.")
        taken = [each for each in (self.http, self.grpc, self.admin) if each is not None]
        for one, other in combinations(taken, 2):
            if one.meets(other):
                raise InvalidSetting(
                    f"http, grpc and admin need addresses of their own; {one} and {other} are in each other's way."
                )

    def completed(self) -> Settings:
        """The same, with secrets made up where none was given."""
        return replace(
            self,
            secret=self.secret or secrets.token_urlsafe(32),
            admin_token=self.admin_token or secrets.token_urlsafe(24),
        )

    def __repr__(self) -> str:
        return "Settings(" + ", ".join(f"{name}={text}" for name, text in self.told()) + ")"

    @property
    def told_engine(self) -> str:
        """The engine without a password, wherever it may stand."""
        return re.sub(r"(username|password)=[^&]*", r"\1=(secret)", re.sub(r"//.*@", "//", self.engine))

    def told(self) -> list[tuple[str, str]]:
        """Everything but secrets."""
        return [
            ("engine", self.told_engine)
            if each.name == "engine"
            else (
                each.name,
                "(secret)" if each.metadata["secret"] and value else str(OFF if value is None else value),
            )
            for each in fields(self)
            for value in (getattr(self, each.name),)
        ]


SETTING_NAMES = tuple(each.name for each in fields(Settings))
FILE_SETTINGS = ("engine", *(each.name for each in fields(Settings) if each.metadata["secret"]))


def read(
    flags: Mapping[str, str | None], environment: Mapping[str, str] | None = None, config: str | None = None
) -> Settings:
    """What was set, by whom it was set last."""
    environment = os.environ if environment is None else environment
    said: dict[str, tuple[str, str]] = {}
    path = config or environment.get(f"{ENVIRONMENT}CONFIG")
    for source in (_of_file(path) if path else {}, _of_environment(environment)):
        said.update(source)
    said.update({name: (text, flag(name)) for name, text in flags.items() if text is not None})
    found: dict[str, Any] = {"grpc": None} if missing(*ENVOY_MODULES) else {}  # it could not be served
    for each in fields(Settings):
        if each.name in said:
            text, source_name = said[each.name]
            found[each.name] = _read(each.metadata["read"], text, source_name, each.metadata["secret"])
    return Settings(**found)


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _read(reader: Callable[[str], Any], text: str, source: str, secret: bool) -> Any:
    try:
        return reader(text)
    except HeadgateError as error:
        raise InvalidSetting(f"{source}: {error}") from error
    except ValueError as error:
        shown = "this" if secret else repr(text)
        raise InvalidSetting(f"{source}: {error} was expected, not {shown}.") from None


def _of_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    found = {}
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT) or variable == f"{ENVIRONMENT}CONFIG":
            continue
        plain = variable.removesuffix("_FILE")
        name, plain_name = (each.removeprefix(ENVIRONMENT).lower() for each in (variable, plain))
        if name in SETTING_NAMES:
            found[name] = text, variable
        elif plain_name in FILE_SETTINGS:
            if plain in environment:
                raise InvalidSetting(f"{plain} and {variable} are both set: which is it?")
            found[plain_name] = _secret(text, variable), variable
        else:
            _check_variable(variable, name, plain_name)
    return found


def _check_variable(variable: str, name: str, plain_name: str) -> None:
    """Names that are like none of ours are left alone: Kubernetes has HEADGATE_SERVICE_HOST and many more."""
    near = [plain_name] if plain_name in SETTING_NAMES else get_close_matches(name, SETTING_NAMES, 1, 0.8)
    if near:
        raise InvalidSetting(f"{variable} is not a setting. Did you mean {ENVIRONMENT}{near[0].upper()}?")


def _secret(path: str, source: str) -> str:
    words = _text(path, source).strip()
    if not words:
        raise InvalidSetting(f"{source}: {path} is empty.")
    return words


def _of_file(path: str) -> dict[str, tuple[str, str]]:
    text = _text(path, "--config")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        fault = read_toml.complaint(text, str(error))
        raise InvalidSetting(f"{path}:{fault.place.line}: {fault.sentence}") from None
    found = {}
    for name, value in document.items():
        source = f"{path}:{_line(text, name)}"
        if name not in SETTING_NAMES:
            near = get_close_matches(name, SETTING_NAMES, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else f" Known are {', '.join(SETTING_NAMES)}."
            raise InvalidSetting(f'{source}: "{name}" is not a setting.{hint}')
        found[name] = _as_text(value, source, name), source
    return found


def _as_text(value: object, source: str, name: str) -> str:
    if value is False:
        return OFF
    if isinstance(value, str | int | float) and value is not True:
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    raise InvalidSetting(f"{source}: {name} is a text, a number or a list of texts.")


def _line(text: str, name: str) -> int:
    found = re.search(rf'^\s*"?{re.escape(name)}"?\s*[=.]', text, re.M) or re.search(
        rf"^\s*\[+\s*{re.escape(name)}\b", text, re.M
    )
    return text.count("\n", 0, found.start() + 1) + 1 if found else 1


def _text(path: str, source: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise InvalidSetting(f"{source}: {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidSetting(f"{source}: {path} is not UTF-8.") from None


class SettingInfo(NamedTuple):
    """A setting, as flags and the reference tell it."""

    name: str
    default: str
    metavar: str
    about: str


def table() -> list[SettingInfo]:
    """All settings, in their order."""
    return [
        SettingInfo(each.name, each.metadata["default"], each.metadata["metavar"], each.metadata["about"])
        for each in fields(Settings)
    ]
