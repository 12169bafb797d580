"""A whole nginx.conf for a rulebook: for somebody who has nginx and a rulebook, with a reason for each line.

Pure: what was found on this machine (the Lua, the modules, a DNS server) comes in, the text comes out. It is a
beginning to be edited, so what is likely to be changed stands alone on its line, and what the rulebook wants to
know and nginx cannot is there to be filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.errors import InvalidRule
from headgate.gateway.bundle import limits_of
from headgate.rules.attributes import PREFIXES
from headgate.rules.ip_networks import canonical
from headgate.rules.matching.used_attributes import used
from headgate.rules.rule import Rule, Rulebook

DICT = "headgate"
MEGABYTES = 20
KEYS_PER_MEGABYTE = 8_000  # measured: key and value of up to SHORT bytes together; half as many up to LONG
SHORT, LONG = 60, 180

KNOWN = ("address", "host", "method", "path", "server")  # to nginx, by itself; and what begins with PREFIXES
MODULES = ("ndk_http_module.so", "ngx_http_lua_module.so")
DEBIAN = "/usr/share/nginx/modules"

_GUESSES = {"user": "$remote_user", "plan": "$http_x_plan"}
_backend = re.compile(r"""https?://[^\s;{}"'$\\]+""")


@dataclass(frozen=True, kw_only=True)
class Gate:
    """What is chosen beside the book. `modules` None: nobody knows whether they are built in."""

    package_path: str
    said: str = "headgate nginx conf"  # the command that makes it
    modules: Sequence[str] | None = None
    engine: str | None = None  # None: everything is counted in this nginx
    plate: str | None = None  # None: the pushed one is followed
    prefix: str = "hg"
    listen: int = 8000
    backend: str = "http://127.0.0.1:8080"
    workers: int | None = None
    resolver: str = "127.0.0.53"
    logs: str = "/var/log/nginx"
    underscored: Sequence[str] = ()  # headers that the rulebook spells with _
    scratch: str | None = None  # a folder for all that nginx puts aside, where that is not its own


def conf(book: Rulebook, gate: Gate) -> str:
    """The text of the file."""
    if not _backend.fullmatch(gate.backend):
        raise InvalidRule(f"The backend is not a URL such as http://127.0.0.1:8080: {gate.backend!r}.")
    return "\n".join([*_main(book, gate), "http {", *_indented(_http(book, gate)), "}"]) + "\n"


def unknown(book: Rulebook) -> dict[str, list[Rule]]:
    """The attributes that nginx cannot know by itself, and the rules that look at them."""
    found: dict[str, list[Rule]] = {}
    for rule in book.rules:
        captured = frozenset() if rule.when is None else rule.when.captures
        for name in dict.fromkeys(used(rule)):
            if name not in KNOWN and name not in captured and not name.startswith(PREFIXES):
                found.setdefault(name, []).append(rule)
    return dict(sorted(found.items()))


def _main(book: Rulebook, gate: Gate) -> Iterator[str]:
    count = f"{len(book)} rule{'' if len(book) == 1 else 's'}"
    yield f"# nginx by a rulebook: {_one_line(book.source or 'no file')}, {count}. Printed by"
    yield f"#   {_one_line(gate.said)}"
    yield "# Check it with  headgate nginx check FILE  and start it with  nginx -c FILE  (a whole path)."
    yield ""
    yield from _modules(gate.modules)
    yield f"worker_processes {gate.workers or 'auto'};"
    yield f"error_log {gate.logs}/error.log notice;"
    yield "events { worker_connections 4096; }"
    yield ""


def _modules(found: Sequence[str] | None) -> Iterator[str]:
    if found:
        yield "# The Lua module, and what it stands on. Where they are built in (OpenResty), remove these lines."
        yield from (f"load_module {path};" for path in found)
    elif found is None:
        yield "# Where the Lua module is not built in, load it: in Debian (libnginx-mod-http-lua) by these lines."
        yield from (f"# load_module {DEBIAN}/{name};" for name in MODULES)
    else:
        yield "# The Lua module is built into this nginx. In Debian it is not: load_module would stand here."
    yield ""


def _http(book: Rulebook, gate: Gate) -> Iterator[str]:
    yield "# Our Lua: headgate lua path. For an image: headgate lua copy DIR, and name that here."
    yield f'lua_package_path "{gate.package_path};;";'
    yield ""
    keys, size = MEGABYTES * KEYS_PER_MEGABYTE, f"{MEGABYTES}m"
    yield f"# All that this nginx remembers. {size} hold {keys:,} keys of up to {SHORT} bytes with their values,"
    yield f"# {keys // 2:,} of up to {LONG}. When it is full, no count is forgotten: new keys of a rule share one"
    yield "# count until old ones have run out, and the error log says so."
    yield f"lua_shared_dict {DICT} {size};"
    yield ""
    yield "# What was decided, for the log. Other modules can use it too."
    for name in ("status", "rule", "remaining", "dry_run"):
        yield f'map "" $headgate_{name} {{ default ""; }}'
    yield ""
    yield "log_format headgate '$remote_addr [$time_iso8601] \"$request\" $status $body_bytes_sent $request_time '"
    yield "                    'gate=$headgate_status rule=$headgate_rule remaining=$headgate_remaining '"
    yield "                    'dry_run=$headgate_dry_run';"
    yield f"access_log {gate.logs}/access.log headgate;"
    yield ""
    yield from _server_names(gate)
    if gate.engine is not None:
        yield "# If Redis is gone the error log says so once; nginx would add a line for each connection."
        yield "lua_socket_log_errors off;"
        yield ""
    yield "init_by_lua_block {"
    yield '  require("resty.headgate").init{'
    yield from _indented(_indented(_options(book, gate)))
    yield "  }"
    yield "}"
    yield 'init_worker_by_lua_block { require("resty.headgate").start() }'
    yield ""
    yield "# Behind another proxy the address is that proxy's, unless nginx is told whom to believe:"
    yield "# set_real_ip_from 10.0.0.0/8;"
    yield "# real_ip_header X-Forwarded-For;"
    yield ""
    yield from _underscores(book, gate)
    if gate.scratch is not None:
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
            yield f"{name}_temp_path {gate.scratch}/{name};"
        yield ""
    yield "server {"
    yield from _indented(_server(book, gate))
    yield "}"


def _underscores(book: Rulebook, gate: Gate) -> Iterator[str]:
    """Header fields with an underscore, which nginx drops unless told: to a rule such a call lacks the header."""
    if gate.underscored:
        yield f"# Rules look at {', '.join(gate.underscored)}. nginx drops fields with _ in their names by itself."
        yield "underscores_in_headers on;"
        yield ""
    elif any(name.startswith("header.") and "-" in name for rule in book.rules for name in used(rule)):
        yield "# nginx drops fields with _ in their names: a call with X_User has no x-user to its rule."
        yield "# If clients of yours write them so:"
        yield "# underscores_in_headers on;"
        yield ""


def _server_names(gate: Gate) -> Iterator[str]:
    """What cosockets need beside: nginx asks no /etc/hosts, and trusts nobody unless told."""
    if gate.engine is None:
        return
    scheme, _, rest = gate.engine.partition("://")
    netloc = re.split("[/?]", rest.rpartition("@")[2], maxsplit=1)[0]
    hosts = [_host(each) for each in netloc.split(",")]
    if any(host and canonical(host) is None for host in hosts):
        yield "# The engine is named, not numbered: nginx asks this DNS server, and no /etc/hosts."
        yield f"resolver {gate.resolver};"
        yield ""
    if scheme.startswith(("rediss", "valkeys")):
        yield "# Whom to believe that they are the engine."
        yield "lua_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;"
        yield "lua_ssl_verify_depth 3;"
        yield ""


def _host(server: str) -> str:
    if server.startswith("["):
        return server[1:].partition("]")[0]
    return server.partition(":")[0]


def _options(book: Rulebook, gate: Gate) -> Iterator[str]:
    if gate.engine is None:
        yield 'engine = "shared",  -- all counts are this nginx\'s own, in the dict'
    else:
        yield f"redis = {_lua(gate.engine)},"
    if gate.plate is not None:
        yield f"rules = {_lua(gate.plate)},  -- made by: headgate rules compile"
    else:
        yield "-- The rulebook is the one that was published by: headgate rules push"
        yield "-- The last good one can be kept for a start without Redis, in a file that workers may write:"
        yield '-- keep = "/var/cache/headgate/plate.json",'
    yield f'dict = "{DICT}",'
    if gate.prefix != "hg":
        yield f"prefix = {_lua(gate.prefix)},"
    yield from _attributes(book)


def _attributes(book: Rulebook) -> Iterator[str]:
    yield f"-- nginx knows by itself: {', '.join(KNOWN)}, header.NAME, argument.NAME, cookie.NAME."
    wanted = unknown(book)
    if not wanted:
        yield "-- The rulebook looks at nothing else."
        return
    yield "-- The rulebook looks at more. Unless a variable is named for it, user is $remote_user, and anything"
    yield "-- else the nginx variable of its own name: plan is $plan. Name another, and remove the dashes. A"
    yield "-- header or a cookie is whatever the client says; what auth_request_set or a map says is better."
    yield "attributes = {"
    for name, rules in wanted.items():
        guess = _GUESSES.get(name, f"$http_x_{name}")
        yield f'  -- {name} = "{guess}",  -- {_whose(name, rules)}'
    yield "},"


def _whose(name: str, rules: Sequence[Rule]) -> str:
    said = f"rule{'' if len(rules) == 1 else 's'} {', '.join(rule.name for rule in rules)}"
    strict = [rule.name for rule in rules if rule.missing == "deny" and name in _needed(rule)]
    return f"{said}; without it {', '.join(strict)} refuses every call" if strict else said


def _needed(rule: Rule) -> set[str]:
    costs = [] if rule.cost is None else [rule.cost.otherwise, *(value for _, value in rule.cost.cases)]
    return {dimension.name for dimension in rule.key} | {cost for cost in costs if isinstance(cost, str)}


def _server(book: Rulebook, gate: Gate) -> Iterator[str]:
    yield f"listen {gate.listen};"
    yield ""
    yield "# Every request is decided here. A location with an access_by_lua of its own needs this line, too."
    yield 'access_by_lua_block { require("resty.headgate").access() }'
    if any(limit.algorithm == "slots" for rule in book.rules for limit in limits_of(rule)):
        yield "# Slots go back when their request ends."
        yield 'log_by_lua_block { require("resty.headgate").log() }'
    else:
        yield "# Slots would go back when their request ends. No rule has any, and each request would pay for it:"
        yield '# log_by_lua_block { require("resty.headgate").log() }'
    yield ""
    yield "location / {"
    yield f"  proxy_pass {gate.backend};"
    yield "  proxy_set_header Host $host;"
    yield "  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
    yield "  proxy_http_version 1.1;"
    yield '  proxy_set_header Connection "";'
    yield "}"


def _indented(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}" if line else ""


def _lua(text: str) -> str:
    """A text as Lua and nginx's reader of Lua blocks both read it."""
    escaped = re.sub(r'[\\"\x00-\x1f\x7f]', lambda found: f"\\{ord(found[0]):03d}", text)
    return f'"{escaped}"'


def _one_line(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)
