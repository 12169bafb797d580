"""nginx: translates limit_req and limit_conn, with their zones, into rules.

    limit_req_zone $binary_remote_addr zone=login:10m rate=10r/s;
    location /login { limit_req zone=login burst=5 nodelay; }

becomes

    - name: login
      when: {path: /login*/**}
      key: address/32/128
      limit: 10/s queue 5 nodelay

A zone has its own counters, and the locations that use it with the same numbers are one rule. The queue is that of
nginx, to the millisecond (algorithms/leaky_bucket.py). nginx does not count an empty key: missing is skip.
Refusals are 503.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from headgate.errors import InvalidRule
from headgate.rules.imports.nginx_conf_parser import Directive, read
from headgate.rules.imports.nginx_locations import (
    Condition,
    Location,
    RegexLocation,
    all_limits,
    any_of,
    location_conditions,
    nest_locations,
    regex_patterns,
)
from headgate.rules.imports.nginx_variables import NginxKey, Variables
from headgate.rules.imports.rulebook_draft import Draft, Translation, one_or_all

DEFAULT_STATUS = 503

_rate = re.compile(r"([1-9][0-9]{0,8})(r?)/([sm])")
_number = re.compile(r"[0-9]{1,9}")
_LOGGING_DIRECTIVES = {"limit_req_log_level", "limit_conn_log_level"}
_BANDWIDTH = {"limit_rate", "limit_rate_after"}


class _Zone(NamedTuple):
    """A zone of limit_req_zone or limit_conn_zone."""

    line: int
    name: str
    key: NginxKey
    rate: str | None  # of limit_req, as a headgate rate


class _Use(NamedTuple):
    """A zone with the numbers of one directive."""

    module: str  # req or conn
    zone: str
    limit: str
    status: int = DEFAULT_STATUS
    shadow: bool = False


class _Level(NamedTuple):
    """The limits of a block: those it states, or else those of the block around it."""

    uses: dict[str, tuple[_Use, ...]]
    status: dict[str, int]
    shadow: dict[str, bool]

    @property
    def limits(self) -> frozenset[_Use]:
        return frozenset(
            use._replace(
                status=self.status.get(use.module, DEFAULT_STATUS), shadow=self.shadow.get(use.module, False)
            )
            for uses in self.uses.values()
            for use in uses
        )


class _ServerBlock(NamedTuple):
    """A server block with its locations."""

    line: int
    hosts: list[str]  # empty: hosts that no other server names
    root: Location
    expressions: list[RegexLocation]


def translate(text: str, name: str | None = None) -> Translation:
    """Translates the limits of an nginx configuration, or of a part of one."""
    return _NginxTranslator(text).build(name)


class _NginxTranslator:
    """Translates one nginx configuration."""

    def __init__(self, text: str) -> None:
        self.draft = Draft()
        top = read(text)
        blocks = top.all("http") or [top]
        self.http = Directive(1, "http", [], [inner for block in blocks for inner in block.block])
        for block in top.all("stream"):
            if block.all("limit_conn", "limit_conn_zone"):
                self.draft.note(
                    block.line, "limits in a stream block do not apply to HTTP calls: they are left out."
                )
        self.variables = Variables(self.draft, self.http.all("map", "geo", "split_clients"))
        self.zones = {(zone.name, zone.rate is None): zone for zone in map(self._zone, self._zone_directives())}
        self.use_lines: dict[_Use, int] = {}  # the line of each use's directive

    def build(self, name: str | None) -> Translation:
        http_level = self._level(self.http, _Level({}, {}, {}))
        blocks = self.http.all("server")
        if not blocks:
            blocks = [Directive(1, "server", [], self.http.all("location"))]
        servers = [self._server(block, http_level) for block in blocks]
        uses = self._in_order(servers)
        for use in uses:
            self._rule(use, servers, alone=len([other for other in uses if other[:2] == use[:2]]) == 1)
        if self.draft.rules:
            self._general(servers)
        return self.draft.build(name=name, defaults={"missing": "skip", "refuse": {"status": DEFAULT_STATUS}})

    def _zone_directives(self) -> list[Directive]:
        return self.http.all("limit_req_zone", "limit_conn_zone")

    def _zone(self, directive: Directive) -> _Zone:
        options = dict(word.split("=", 1) for word in directive.arguments[1:] if "=" in word)
        if not directive.arguments or not options.get("zone"):
            raise InvalidRule(f"line {directive.line}: {directive.name} has a key and a zone=NAME:SIZE.")
        key = self._key(directive)
        zone = options["zone"].partition(":")[0]
        if directive.name == "limit_conn_zone":
            return _Zone(directive.line, zone, key, None)
        rate = _rate.fullmatch(options.get("rate", ""))
        if rate is None:
            rate_text = options.get("rate", "")[:40]
            raise InvalidRule(f'line {directive.line}: a rate is rate=10r/s or rate=10r/m, not "{rate_text}".')
        if not rate[2]:
            self.draft.note(directive.line, f"nginx itself refuses rate={rate[0]}: {rate[1]}r/{rate[3]} was read.")
        if "sync" in directive.arguments:
            self.draft.note(directive.line, "sync is not needed: counts are shared through the engine anyway.")
        return _Zone(directive.line, zone, key, f"{rate[1]}/{'s' if rate[3] == 's' else 'minute'}")

    def _key(self, directive: Directive) -> NginxKey:
        """Returns the key of a zone. Tengine takes several keys, and counts by all of them together."""
        key_texts = [directive.arguments[0], *(word for word in directive.arguments[1:] if word.startswith("$"))]
        keys = [self.variables.key(directive.line, key) for key in key_texts]
        if len(keys) == 1:
            return keys[0]
        if any(key.exempt is not None for key in keys):
            self.draft.note(
                directive.line,
                "a map leaves one of the keys empty for some calls: Tengine counts those by the other keys alone, "
                "here they are counted by all keys.",
            )
        return NginxKey(list(dict.fromkeys(dimension for key in keys for dimension in key.dimensions)))

    def _server(self, block: Directive, outer: _Level) -> _ServerBlock:
        level = self._level(block, outer)
        locations: list[Location] = []
        expressions: list[tuple[Directive, RegexLocation | None, frozenset[Any]]] = []
        self._locations(block, level, locations, expressions)
        default_location = Location("/", limits=level.limits)
        uniform = all(
            limits == default_location.limits
            for limits in [*(p.limits for p in locations), *(e[2] for e in expressions)]
        )
        for location, expression, _ in expressions:
            if expression is None and not uniform:
                self.draft.note(
                    location.line,
                    f'the regular expression "{location.arguments[-1]}" has no equivalent: the limits of this '
                    "location are left out, and its calls are counted as if it were not there.",
                )
        usable_expressions = (
            [] if uniform else [expression for _, expression, _ in expressions if expression is not None]
        )
        names = [(directive, word) for directive in block.all("server_name") for word in directive.arguments]
        hosts = [host for directive, word in names for host in self._host(directive, word)]
        return _ServerBlock(
            block.line, hosts, nest_locations([] if uniform else locations, default_location), usable_expressions
        )

    def _locations(
        self, block: Directive, outer: _Level, locations: list[Location], expressions: list[Any]
    ) -> None:
        for location in block.all("location"):
            if not location.arguments:
                raise InvalidRule(f"line {location.line}: a location has a path.")
            level = self._level(location, outer)
            arguments = location.arguments
            modifier, path = (arguments[0], arguments[1]) if len(arguments) > 1 else _split_modifier(arguments[0])
            if path.startswith("@"):
                if level.limits != outer.limits:
                    self.draft.note(location.line, f"calls are sent to {path} inside: its limits are left out.")
            elif modifier in ("~", "~*"):
                path_patterns = regex_patterns(path)
                if path_patterns and modifier == "~*":
                    self.draft.note(location.line, f'case matters here in "{path}", in nginx it did not.')
                regex_location = RegexLocation(path_patterns, level.limits) if path_patterns else None
                expressions.append(
                    (Directive(location.line, "location", [modifier, path]), regex_location, level.limits)
                )
            elif not path.startswith("/") or re.search(r"[*{}]|/\.\.?(?:/|$)", path):
                self.draft.note(location.line, f'"{path}" cannot be a path here: the location is left out.')
            elif any(
                (other_location.path, other_location.exact) == (path, modifier == "=")
                for other_location in locations
            ):
                raise InvalidRule(f'line {location.line}: the location "{path}" appears twice in its server.')
            else:
                locations.append(Location(path, modifier == "=", modifier in ("=", "^~"), level.limits))
                if path != "/" and path.endswith("/"):
                    self.draft.note(None, "A slash at the end does not count: location /api/ is also /api.")
            self._locations(location, level, locations, expressions)

    def _host(self, directive: Directive, word: str) -> list[str]:
        if word.startswith("~"):
            self.draft.note(
                directive.line, f'the regular expression "{word[1:]}" has no equivalent: it is left out.'
            )
            return []
        if word in ("_", "", '""'):
            return []
        return [word[1:], f"*{word}"] if word.startswith(".") and len(word) > 1 else [word]

    def _level(self, block: Directive, outer: _Level) -> _Level:
        level = _Level(dict(outer.uses), dict(outer.status), dict(outer.shadow))
        for module in ("req", "conn"):
            limit_directives = block.all(f"limit_{module}")
            limits = [directive for directive in limit_directives if directive.arguments not in (["on"], ["off"])]
            if any(directive.arguments == ["off"] for directive in limit_directives):  # Tengine's
                level.uses[module] = ()
            elif limits:
                level.uses[module] = tuple(
                    use for directive in limits if (use := self._use(module, directive)) is not None
                )
            for directive in block.all(f"limit_{module}_status"):
                level.status[module] = _parse_number(directive, directive.arguments[-1:])
            for directive in block.all(f"limit_{module}_dry_run"):
                level.shadow[module] = directive.arguments == ["on"]
        for directive in block.block:
            if directive.name in _LOGGING_DIRECTIVES:
                self.draft.note(
                    directive.line, f"{directive.name} is left out: logging is not part of a rulebook."
                )
            if directive.name == "limit_req_whitelist":
                self.draft.note(
                    directive.line,
                    "limit_req_whitelist is left out: name the addresses in the rule's except, such as "
                    "except: {address: 10.0.0.0/8}.",
                )
            if directive.name in _BANDWIDTH:
                self.draft.note(
                    directive.line, f"{directive.name} limits bandwidth, which has no equivalent: it is left out."
                )
            if directive.name == "include" and directive.arguments[-1:] != ["mime.types"]:
                self.draft.note(
                    directive.line, f'"{" ".join(directive.arguments)}" is not read: translate it with this file.'
                )
            if directive.name == "if" and directive.all("limit_req", "limit_conn"):
                self.draft.note(directive.line, "limits inside of if are not allowed in nginx: they are left out.")
        return level

    def _use(self, module: str, directive: Directive) -> _Use | None:
        arguments = directive.arguments
        options = dict(word.split("=", 1) for word in arguments if "=" in word)
        zone = options.get("zone", "").partition(":")[0] if module == "req" else (arguments or [""])[0]
        if not zone:
            raise InvalidRule(f"line {directive.line}: {directive.name} names a zone.")
        defined_zone = self.zones.get((zone, module == "conn"))
        if defined_zone is None:
            self.draft.note(
                directive.line, f'the zone "{zone}" is not defined here: this {directive.name} is left out.'
            )
            return None
        if module == "conn":
            limit = f"{_parse_number(directive, arguments[1:2])} slots"
        else:
            queue = _parse_number(directive, [options.get("burst", "0")])
            if "forbid_action" in options:
                self.draft.note(directive.line, "forbid_action is left out: refusals answer with the status.")
            delay = "" if not options.get("delay") else f" delay {_parse_number(directive, [options['delay']])}"
            limit = f"{defined_zone.rate} queue {queue}" + (" nodelay" if "nodelay" in arguments else delay)
        use = _Use(module, zone, limit)
        self.use_lines.setdefault(use, directive.line)
        return use

    def _in_order(self, servers: list[_ServerBlock]) -> list[_Use]:
        """Returns every use that some location has, in the order of the file."""
        uses = {use for server in servers for use in _limits_of(server)}
        order = list(self.use_lines)
        return sorted(uses, key=lambda use: (order.index(use._replace(status=DEFAULT_STATUS, shadow=False)), use))

    def _rule(self, use: _Use, servers: list[_ServerBlock], alone: bool) -> None:
        zone = self.zones[use.zone, use.module == "conn"]
        line = self.use_lines[use._replace(status=DEFAULT_STATUS, shadow=False)]
        if not alone:
            self.draft.note(
                line,
                f'the zone "{use.zone}" is used with several numbers: each of them is a rule that counts alone.',
            )
        if use.module == "conn" and use.limit == "0 slots":
            self.draft.note(line, "limit_conn of 0 has no equivalent: it is left out.")
            return
        when = self._when(use, servers)
        if when == []:
            self.draft.note(line, "no call can reach the location that has this limit: it is left out.")
            return
        self.draft.rule(
            name=self.draft.name(use.zone),
            when=when,
            **{"except": zone.key.exempt},
            key=one_or_all(zone.key.dimensions) if zone.key.dimensions else None,
            limit=use.limit,
            mode="shadow" if use.shadow else None,
            refuse={"status": use.status} if use.status != DEFAULT_STATUS else None,
        )

    def _when(self, use: _Use, servers: list[_ServerBlock]) -> Any:
        all_hosts = [host for server in servers for host in server.hosts]
        alternatives: list[Condition] = []
        for server in servers:
            host: Condition = {"host": one_or_all(server.hosts)} if server.hosts else {}
            paths = location_conditions(server.root, server.expressions, lambda location: use in location.limits)
            if paths and not server.hosts and all_hosts:
                host = {"all": [{"not": {"host": one_or_all(all_hosts)}}]}
            alternatives_by_path = any_of(paths) if paths else []
            for path in alternatives_by_path if isinstance(alternatives_by_path, list) else [alternatives_by_path]:
                if {**host, **path} not in alternatives:
                    alternatives.append({**host, **path})
        everywhere = all(use in limits for server in servers for limits in _all_limits(server))
        return None if everywhere or {} in alternatives else one_or_all(alternatives)

    def _general(self, servers: list[_ServerBlock]) -> None:
        self.draft.note(
            None,
            "nginx counts on each machine by itself; these rules count for all. where: node keeps nginx's way.",
        )
        default_server = servers[0]
        if default_server.hosts and any(rule.get("when") for rule in self.draft.rules):
            self.draft.note(
                default_server.line,
                "nginx sends calls for hosts that no server names to its default server; here they meet only the "
                "rules that name no host.",
            )


def _all_limits(server: _ServerBlock) -> list[frozenset[_Use]]:
    return [*all_limits(server.root), *(expression.limits for expression in server.expressions)]


def _limits_of(server: _ServerBlock) -> frozenset[_Use]:
    return frozenset().union(*_all_limits(server))


def _split_modifier(argument: str) -> tuple[str, str]:
    """Splits a modifier from its path: nginx also reads location =/login, without a blank."""
    for modifier in ("^~", "~*", "~", "="):
        if argument.startswith(modifier) and len(argument) > len(modifier):
            return modifier, argument[len(modifier) :]
    return "", argument


def _parse_number(directive: Directive, arguments: list[str]) -> int:
    if not arguments or not _number.fullmatch(arguments[0]):
        raise InvalidRule(f"line {directive.line}: {directive.name} needs a whole number.")
    return int(arguments[0])
