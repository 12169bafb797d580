"""The settings of the service: one table, from which flags, environment, file and documentation are made.

    headgate serve --workers 2         a flag
    HEADGATE_WORKERS=2                 the environment
    workers = 2                        a TOML file, named by --config or HEADGATE_CONFIG

A flag overrides the environment, which overrides the file. Each setting is a text in all three; numbers and lists
of a TOML file are converted to text first. Secrets, and the engine, whose URL may contain a password, can also be
in a file that the environment names: HEADGATE_ADMIN_TOKEN_FILE=/run/secrets/token.

Laws (tests/service/test_settings.py): every setting is used, or the service does not start: an unknown name, a
value that cannot be parsed and an unsafe combination are errors with a sentence. No secret is ever shown.

(This file is long for one reason: the table of all settings is in one place.)
"""

# ruff: noqa: RUF009 (_setting is a field)
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
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.algorithms.slots import Slots
from headgate.errors import HeadgateError, InvalidRule, InvalidSetting
from headgate.extras import ENVOY_MODULES, missing
from headgate.http.client_ip import Proxies
from headgate.limit_syntax import parse, parse_span
from headgate.rules.parsing import read_toml

if TYPE_CHECKING:
    from headgate.observer import Observer
    from headgate.telemetry.decision_log import DecisionLog

ENV_PREFIX = "HEADGATE_"
OFF = "off"
_MIN_SECRET = 16  # characters
_ANY_HOST = {"0.0.0.0", "::"}


class Address(NamedTuple):
    """An address to listen at: a host and a port, or the path of a socket."""

    host: str
    port: int
    path: str | None = None

    @property
    def loopback(self) -> bool:
        """Returns whether only this machine can reach it."""
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def conflicts_with(self, other: Address) -> bool:
        """Returns whether a process cannot listen at both."""
        if self.path is not None or other.path is not None:
            return self.path == other.path
        any_host = _ANY_HOST & {self.host, other.host}
        return self.port == other.port and (self.host == other.host or bool(any_host))

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def address(text: str) -> Address | None:
    """Parses HOST:PORT, :PORT (every address of this machine), unix:PATH, or off."""
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


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse_number(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not minimum <= int(text) <= maximum:
            raise ValueError(f"a whole number from {minimum} to {maximum}")
        return int(text)

    return parse_number


def duration_s(text: str) -> float:
    try:
        return parse_span(text) / 1_000_000
    except InvalidRule:
        raise ValueError("a length of time, such as 10s or 500ms") from None


def fraction(text: str) -> float:
    if not re.fullmatch(r"[0-9.]{1,12}", text) or text.count(".") > 1 or not 0 <= float(text) <= 1:
        raise ValueError("a number from 0 to 1, such as 0.1")
    return float(text)


def one_of(*words: str) -> Callable[[str], str]:
    def parse_word(text: str) -> str:
        if text not in words:
            raise ValueError(" or ".join(words))
        return text

    return parse_word


def comma_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def header_name(text: str) -> str:
    if text and not re.fullmatch(r"[A-Za-z0-9-]{1,100}", text):
        raise ValueError("the name of a header field, such as X-Forwarded-User")
    return text.lower()


def file(text: str) -> Path | None:
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
    """Proxies, and the text that they were parsed from."""

    def __init__(self, text: str) -> None:
        self._text = text
        super().__init__(comma_list(text))

    def __str__(self) -> str:
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrustedProxies) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)


def _setting(default: str, read: Callable[[str], Any], metavar: str, about: str, secret: bool = False) -> Any:
    metadata = {"default": default, "read": read, "metavar": metavar, "about": about, "secret": secret}
    return field(default_factory=lambda: read(default), metadata=metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of a service."""

    rules: str = _setting(
        "",
        str,
        "FILE",
        "the rulebook: a file, also one of envoyproxy/ratelimit; or pushed, for the one pushed to the engine's "
        "server; default: a sample",
    )
    engine: str = _setting("memory://", str, "URL", "where counts are kept: memory:// or redis://HOST:PORT/DB")
    prefix: str = _setting("hg", str, "NAME", "the prefix of all keys on the server")
    http: Address | None = _setting("127.0.0.1:8080", address, "ADDRESS", "the address of the HTTP API, or off")
    grpc: Address | None = _setting("127.0.0.1:8081", address, "ADDRESS", "the address of Envoy's gRPC, or off")
    envoy_headers: str = _setting(
        "on", one_of("on", OFF), "WORD", "whether answers to Envoy have header fields about limits: on or off"
    )
    envoy_names: str = _setting(
        "on",
        one_of("on", OFF),
        "WORD",
        "whether answers to Envoy have the names of limits, in statuses and header fields: on or off",
    )
    admin: Address | None = _setting("127.0.0.1:8082", address, "ADDRESS", "the address of the admin API, or off")
    admin_token: str = _setting(
        "", str, "TOKEN", "the token that operators must send; default: a random one, printed at the start", True
    )
    viewer_token: str = _setting(
        "", str, "TOKEN", "a token with which the dashboard can be read, and nothing changed; default: none", True
    )
    dashboard_user_header: str = _setting(
        "",
        header_name,
        "NAME",
        "the field in which a trusted proxy names the dashboard's user, such as X-Forwarded-User; default: none",
    )
    dashboard_operators: tuple[str, ...] = _setting(
        "", comma_list, "USERS", "the users of that header who may change something; all others may only read"
    )
    workers: int = _setting("1", integer(1, 256), "N", "processes that share the addresses; memory:// allows one")
    trusted: Proxies = _setting(
        "127.0.0.0/8,::1,unix",
        TrustedProxies,
        "NETWORKS",
        "networks of the gateways that may state a client's address and request",
    )
    secret: str = _setting(
        "", str, "TEXT", "signs receipts; default: a random one, so that receipts are void after a restart", True
    )
    tls_cert: Path | None = _setting("", file, "FILE", "a certificate chain, for HTTP and gRPC over TLS")
    tls_key: Path | None = _setting("", file, "FILE", "its key")
    tls_client_ca: Path | None = _setting("", file, "FILE", "requires client certificates of these authorities")
    drain: float = _setting("10s", duration_s, "SPAN", "how long running calls may take when the service stops")
    finish_within: float = _setting(
        "30s", duration_s, "SPAN", "when a call that an adaptive rule let pass counts as dropped, unless reported"
    )
    own_limit: str | None = _setting(
        "off", limit_or_off, "LIMIT", "the most calls that each worker answers, as a limit; the rest get 503"
    )
    body: int = _setting("65536", integer(1024, 2**26), "BYTES", "the largest body that is accepted, in bytes")
    batch: int = _setting("100", integer(1, 10_000), "N", "the most checks in one request")
    decision_log: str = _setting("", str, "FILE", "a file that gets one JSON line for each call; default: none")
    decision_log_sample: float = _setting(
        "1", fraction, "PART", "the part of the calls in the decision log, from 0 to 1; refusals are always in it"
    )
    decision_log_salt: str = _setting(
        "", str, "TEXT", "hashes the keys in the decision log with this secret; default: they are readable", True
    )
    decision_log_bytes: int = _setting(
        "100000000", integer(1, 2**40), "BYTES", "the size at which the decision log is rotated, in bytes"
    )
    decision_log_age: float = _setting(
        "1d", duration_s, "SPAN", "the age at which the decision log is rotated; 1d: at midnight UTC"
    )
    decision_log_files: int = _setting("7", integer(0, 10_000), "N", "how many rotated decision logs are kept")
    recent_records: str = _setting(
        "on", one_of("on", OFF), "WORD", "whether Redis gets a sample of recent decisions, for previews: on or off"
    )
    log: str = _setting("text", one_of("text", "json"), "FORM", "the format of log lines: text or json")
    log_level: str = _setting(
        "info",
        one_of("debug", "info", "warning", "error"),
        "LEVEL",
        "the least severe level that is logged: debug, info, warning or error",
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
        if self.viewer_token and self.viewer_token == self.admin_token:
            raise InvalidSetting("viewer_token and admin_token are the same: a viewer could change everything.")
        if self.dashboard_operators and not self.dashboard_user_header:
            raise InvalidSetting("dashboard_operators has no effect without dashboard_user_header.")
        for name in ("admin_token", "viewer_token", "secret"):
            if 0 < len(getattr(self, name)) < _MIN_SECRET:
                raise InvalidSetting(f"{name} is shorter than {_MIN_SECRET} characters: it could be guessed.")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidSetting("tls_cert and tls_key belong together: one of them is missing.")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise InvalidSetting("tls_client_ca has no effect without tls_cert and tls_key.")
        if self.http is None and self.grpc is None and self.admin is None:
            raise InvalidSetting("http, grpc and admin are all off: there is nothing to answer.")
        addresses = [address for address in (self.http, self.grpc, self.admin) if address is not None]
        for one, other in combinations(addresses, 2):
            if one.conflicts_with(other):
                raise InvalidSetting(
                    f"http, grpc and admin need addresses of their own; {one} and {other} overlap."
                )

    def open_decision_log(self) -> DecisionLog | None:
        """Opens the decision log, if there is to be one; raises InvalidSetting if it cannot be written."""
        if not self.decision_log:
            return None
        from headgate.telemetry.decision_log import DecisionLog

        return DecisionLog(
            self.decision_log,
            sample=self.decision_log_sample,
            salt=self.decision_log_salt or None,
            max_bytes=self.decision_log_bytes,
            max_age=self.decision_log_age,
            keep_files=self.decision_log_files,
        )

    def open_observers(self) -> list[Observer]:
        """Opens the decision log and the sample of recent records, as far as they are wanted."""
        observers: list[Observer] = []
        if (log := self.open_decision_log()) is not None:
            observers.append(log)
        if self.recent_records == "on" and not self.engine.startswith("memory:"):
            from headgate.telemetry.recent_records import RecentRecords

            observers.append(RecentRecords(self.engine, prefix=self.prefix, salt=self.decision_log_salt or None))
        return observers

    def with_secrets(self) -> Settings:
        """Returns a copy with generated secrets where none was set."""
        return replace(
            self,
            secret=self.secret or secrets.token_urlsafe(32),
            admin_token=self.admin_token or secrets.token_urlsafe(24),
        )

    def __repr__(self) -> str:
        return "Settings(" + ", ".join(f"{name}={text}" for name, text in self.public_values()) + ")"

    @property
    def engine_without_password(self) -> str:
        """The engine's URL without its password, wherever that is in it."""
        return re.sub(r"(username|password)=[^&]*", r"\1=(secret)", re.sub(r"//.*@", "//", self.engine))

    def public_values(self) -> list[tuple[str, str]]:
        """Returns all settings as text, without secrets."""
        return [
            ("engine", self.engine_without_password)
            if setting.name == "engine"
            else (
                setting.name,
                "(secret)" if setting.metadata["secret"] and value else _public_text(value),
            )
            for setting in fields(self)
            for value in (getattr(self, setting.name),)
        ]


SETTING_NAMES = tuple(each.name for each in fields(Settings))
FILE_SETTINGS = ("engine", *(each.name for each in fields(Settings) if each.metadata["secret"]))


def read_settings(
    flags: Mapping[str, str | None], environment: Mapping[str, str] | None = None, config: str | None = None
) -> Settings:
    """Returns the settings from flags, environment and file, in this order of precedence."""
    environment = os.environ if environment is None else environment
    texts: dict[str, tuple[str, str]] = {}
    path = config or environment.get(f"{ENV_PREFIX}CONFIG")
    for source in (_from_file(path) if path else {}, _from_environment(environment)):
        texts.update(source)
    texts.update({name: (text, flag_name(name)) for name, text in flags.items() if text is not None})
    values: dict[str, Any] = {"grpc": None} if missing(*ENVOY_MODULES) else {}  # it cannot be served without them
    for each in fields(Settings):
        if each.name in texts:
            text, source_name = texts[each.name]
            values[each.name] = _parse_value(each.metadata["read"], text, source_name, each.metadata["secret"])
    return Settings(**values)


def _public_text(value: object) -> str:
    if type(value) is tuple:  # a list of words; an address is a tuple, too
        return ",".join(value)
    return str(OFF if value is None else value)


def flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parse_value(convert: Callable[[str], Any], text: str, source: str, secret: bool) -> Any:
    try:
        return convert(text)
    except HeadgateError as error:
        raise InvalidSetting(f"{source}: {error}") from error
    except ValueError as error:
        sent = "this" if secret else repr(text)
        raise InvalidSetting(f"{source}: {error} was expected, not {sent}.") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    settings = {}
    for variable, text in environment.items():
        if not variable.startswith(ENV_PREFIX) or variable == f"{ENV_PREFIX}CONFIG":
            continue
        base_variable = variable.removesuffix("_FILE")
        name, base_name = (each.removeprefix(ENV_PREFIX).lower() for each in (variable, base_variable))
        if name in SETTING_NAMES:
            settings[name] = text, variable
        elif base_name in FILE_SETTINGS:
            if base_variable in environment:
                raise InvalidSetting(f"{base_variable} and {variable} are both set. Set only one of them.")
            settings[base_name] = _read_secret_file(text, variable), variable
        else:
            _check_unknown_variable(variable, name, base_name)
    return settings


def _check_unknown_variable(variable: str, name: str, base_name: str) -> None:
    """Raises if the name is like one of ours. Others are ignored, such as Kubernetes' HEADGATE_SERVICE_HOST."""
    suggestions = [base_name] if base_name in SETTING_NAMES else get_close_matches(name, SETTING_NAMES, 1, 0.8)
    if suggestions:
        raise InvalidSetting(f"{variable} is not a setting. Did you mean {ENV_PREFIX}{suggestions[0].upper()}?")


def _read_secret_file(path: str, source: str) -> str:
    secret = _read_text(path, source).strip()
    if not secret:
        raise InvalidSetting(f"{source}: {path} is empty.")
    return secret


def _from_file(path: str) -> dict[str, tuple[str, str]]:
    text = _read_text(path, "--config")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        fault = read_toml.toml_fault(text, str(error))
        raise InvalidSetting(f"{path}:{fault.position.line}: {fault.sentence}") from None
    settings = {}
    for name, value in document.items():
        source = f"{path}:{_line_number(text, name)}"
        if name not in SETTING_NAMES:
            suggestions = get_close_matches(name, SETTING_NAMES, 1, 0.5)
            hint = f" Did you mean {suggestions[0]}?" if suggestions else f" Known are {', '.join(SETTING_NAMES)}."
            raise InvalidSetting(f'{source}: "{name}" is not a setting.{hint}')
        settings[name] = _as_text(value, source, name), source
    return settings


def _as_text(value: object, source: str, name: str) -> str:
    if value is False:
        return OFF
    if isinstance(value, str | int | float) and value is not True:
        return str(value)
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    raise InvalidSetting(f"{source}: {name} is a text, a number or a list of texts.")


def _line_number(text: str, name: str) -> int:
    match = re.search(rf'^\s*"?{re.escape(name)}"?\s*[=.]', text, re.M) or re.search(
        rf"^\s*\[+\s*{re.escape(name)}\b", text, re.M
    )
    return text.count("\n", 0, match.start() + 1) + 1 if match else 1


def _read_text(path: str, source: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise InvalidSetting(f"{source}: {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InvalidSetting(f"{source}: {path} is not UTF-8.") from None


class SettingInfo(NamedTuple):
    """A setting, as the flags and the reference show it."""

    name: str
    default: str
    metavar: str
    about: str


def settings_table() -> list[SettingInfo]:
    """Returns all settings, in their order."""
    return [
        SettingInfo(each.name, each.metadata["default"], each.metadata["metavar"], each.metadata["about"])
        for each in fields(Settings)
    ]
