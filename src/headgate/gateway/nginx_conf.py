"""Writes a complete nginx.conf for a rulebook, with a comment on each directive.

Pure: the paths of this machine (the Lua library, the modules, a DNS server) are arguments, the text is the result.
The file is a starting point to be edited, so what is likely to be changed has a line of its own, and attributes
that the rulebook uses and nginx does not know are listed there to be filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headgate.errors import InvalidRule
from headgate.gateway.bundle import limits_of
from headgate.rules.attributes import PREFIXES
from headgate.rules.ip_networks import canonical
from headgate.rules.matching.used_attributes import used_attributes
from headgate.rules.rule import Rule, Rulebook

SHARED_DICT = "headgate"
DICT_MEGABYTES = 20
KEYS_PER_MEGABYTE = 8_000  # measured, for short entries; half as many long ones
SHORT_BYTES, LONG_BYTES = 60, 180  # key and value together

NGINX_ATTRIBUTES = ("address", "host", "method", "path", "server")  # and names with one of PREFIXES
LUA_MODULES = ("ndk_http_module.so", "ngx_http_lua_module.so")
DEBIAN_MODULE_DIR = "/usr/share/nginx/modules"

_SUGGESTED_VARIABLES = {"user": "$remote_user", "plan": "$http_x_plan"}
_backend_url = re.compile(r"""https?://[^\s;{}"'$\\]+""")


@dataclass(frozen=True, kw_only=True)
class NginxOptions:
    """The options of the file, other than the rulebook. `modules` None: whether they are built in is unknown."""

    package_path: str
    command_line: str = "headgate nginx conf"  # the command that prints it
    modules: Sequence[str] | None = None
    engine: str | None = None  # None: nginx counts in its shared dict
    bundle: str | None = None  # None: nginx follows the pushed rulebook
    prefix: str = "hg"
    listen: int = 8000
    backend: str = "http://127.0.0.1:8080"
    workers: int | None = None
    resolver: str = "127.0.0.53"
    logs: str = "/var/log/nginx"
    underscored: Sequence[str] = ()  # headers that the rulebook spells with _
    decision_log: bool = False  # whether every decision is logged as JSON
    scratch: str | None = None  # a folder for nginx's temporary files, unless it uses its default


def render_conf(book: Rulebook, gate: NginxOptions) -> str:
    """Returns the text of the file."""
    if not _backend_url.fullmatch(gate.backend):
        raise InvalidRule(f"The backend is not a URL such as http://127.0.0.1:8080: {gate.backend!r}.")
    return "\n".join([*_main(book, gate), "http {", *_indent(_http(book, gate)), "}"]) + "\n"


def unknown_attributes(book: Rulebook) -> dict[str, list[Rule]]:
    """Returns the attributes that nginx does not know by itself, with the rules that use them."""
    unknown: dict[str, list[Rule]] = {}
    for rule in book.rules:
        captured = frozenset() if rule.when is None else rule.when.captures
        for name in dict.fromkeys(used_attributes(rule)):
            if name not in NGINX_ATTRIBUTES and name not in captured and not name.startswith(PREFIXES):
                unknown.setdefault(name, []).append(rule)
    return dict(sorted(unknown.items()))


def _main(book: Rulebook, gate: NginxOptions) -> Iterator[str]:
    count = f"{len(book)} rule{'' if len(book) == 1 else 's'}"
    yield f"# nginx by a rulebook: {_one_line(book.source or 'no file')}, {count}. Printed by"
    yield f"#   {_one_line(gate.command_line)}"
    yield "# Check it with  headgate nginx check FILE  and start it with  nginx -c FILE  (a whole path)."
    yield ""
    yield from _load_modules(gate.modules)
    yield f"worker_processes {gate.workers or 'auto'};"
    yield f"error_log {gate.logs}/error.log notice;"
    yield "events { worker_connections 4096; }"
    yield ""


def _load_modules(paths: Sequence[str] | None) -> Iterator[str]:
    if paths:
        yield "# The Lua module, and the module it needs. Where they are built in (OpenResty), remove these lines."
        yield from (f"load_module {path};" for path in paths)
    elif paths is None:
        yield "# Where the Lua module is not built in, load it: in Debian (libnginx-mod-http-lua) by these lines."
        yield from (f"# load_module {DEBIAN_MODULE_DIR}/{name};" for name in LUA_MODULES)
    else:
        yield "# The Lua module is built into this nginx. In Debian it is not: load_module would be here."
    yield ""


def _http(book: Rulebook, gate: NginxOptions) -> Iterator[str]:
    yield "# Our Lua: headgate lua path. For an image: headgate lua copy DIR, and name that here."
    yield f'lua_package_path "{gate.package_path};;";'
    yield ""
    keys, size = DICT_MEGABYTES * KEYS_PER_MEGABYTE, f"{DICT_MEGABYTES}m"
    yield (f"# Memory of all workers. {size} hold {keys:,} keys of up to {SHORT_BYTES} bytes with their values,")
    yield (
        f"# {keys // 2:,} of up to {LONG_BYTES}. When it is full, no counter is deleted: "
        "new keys of a rule share one"
    )
    yield "# counter until old ones have expired, and the error log says so."
    yield f"lua_shared_dict {SHARED_DICT} {size};"
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
    yield from _decision_log(gate)
    yield from _resolver_and_tls(gate)
    if gate.engine is not None:
        yield "# If Redis is down, headgate logs that once; nginx would add a line for each failed connection."
        yield "lua_socket_log_errors off;"
        yield ""
    yield "init_by_lua_block {"
    yield '  require("resty.headgate").init{'
    yield from _indent(_indent(_options(book, gate)))
    yield "  }"
    yield "}"
    yield 'init_worker_by_lua_block { require("resty.headgate").start() }'
    yield ""
    yield "# Behind another proxy the address is that proxy's, unless you name the proxies that nginx may trust:"
    yield "# set_real_ip_from 10.0.0.0/8;"
    yield "# real_ip_header X-Forwarded-For;"
    yield ""
    yield from _underscore_headers(book, gate)
    if gate.scratch is not None:
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
            yield f"{name}_temp_path {gate.scratch}/{name};"
        yield ""
    yield "server {"
    yield from _indent(_server(book, gate))
    yield "}"


def _decision_log(gate: NginxOptions) -> Iterator[str]:
    """Yields the log of all decisions, commented out unless it is wanted: each request pays for it."""
    off = "" if gate.decision_log else "# "
    yield "# One JSON line for each decision, to be replayed: headgate replay decisions.jsonl --rules RULES"
    if off:
        yield "# Each request pays for it. Remove the # of these lines, or print them by --decision-log."
    yield f'{off}map "" $headgate_decision {{ default ""; }}'
    yield f"{off}log_format headgate_decisions escape=none"
    yield f"""{off}  '$headgate_decision,"status":$status,"duration_s":$request_time}}';"""
    log = f"{gate.logs}/decisions.jsonl"
    yield f"{off}access_log {log} headgate_decisions buffer=64k flush=1s if=$headgate_decision;"
    yield ""


def _underscore_headers(book: Rulebook, gate: NginxOptions) -> Iterator[str]:
    """Yields the directive for header fields with an underscore, which nginx drops by default."""
    if gate.underscored:
        yield f"# Rules use {', '.join(gate.underscored)}. nginx drops fields with _ in their names by default."
        yield "underscores_in_headers on;"
        yield ""
    elif any(name.startswith("header.") and "-" in name for rule in book.rules for name in used_attributes(rule)):
        yield "# nginx drops fields with _ in their names: for rules, a call with X_User has no x-user."
        yield "# If your clients send such fields:"
        yield "# underscores_in_headers on;"
        yield ""


def _resolver_and_tls(gate: NginxOptions) -> Iterator[str]:
    """Yields what cosockets need: nginx does not read /etc/hosts, and trusts no certificate by default."""
    if gate.engine is None:
        return
    scheme, _, rest = gate.engine.partition("://")
    netloc = re.split("[/?]", rest.rpartition("@")[2], maxsplit=1)[0]
    hosts = [_host(server) for server in netloc.split(",")]
    if any(host and canonical(host) is None for host in hosts):
        yield "# The engine has a host name: nginx asks this DNS server, and reads no /etc/hosts."
        yield f"resolver {gate.resolver};"
        yield ""
    if scheme.startswith(("rediss", "valkeys")):
        yield "# The certificate authorities of the engine."
        yield "lua_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;"
        yield "lua_ssl_verify_depth 3;"
        yield ""


def _host(server: str) -> str:
    if server.startswith("["):
        return server[1:].partition("]")[0]
    return server.partition(":")[0]


def _options(book: Rulebook, gate: NginxOptions) -> Iterator[str]:
    if gate.engine is None:
        yield 'engine = "shared",  -- all counts are this nginx\'s own, in the dict'
    else:
        yield f"redis = {_lua_string(gate.engine)},"
    if gate.bundle is not None:
        yield f"rules = {_lua_string(gate.bundle)},  -- made by: headgate rules compile"
    else:
        yield "-- The rulebook is the one that was published by: headgate rules push"
        yield "-- The last good one can be kept for a start without Redis, in a file that workers may write:"
        yield '-- keep = "/var/cache/headgate/bundle.json",'
    yield f'dict = "{SHARED_DICT}",'
    if gate.prefix != "hg":
        yield f"prefix = {_lua_string(gate.prefix)},"
    if gate.decision_log:
        yield "-- The log can have a part of the requests that no rule refuses, and hash keys with a secret:"
        yield "-- decision_log_sample = 0.1,"
        yield '-- decision_log_salt = "...",'
    yield from _attributes(book)


def _attributes(book: Rulebook) -> Iterator[str]:
    yield f"-- nginx knows by itself: {', '.join(NGINX_ATTRIBUTES)}, header.NAME, argument.NAME, cookie.NAME."
    unknown = unknown_attributes(book)
    if not unknown:
        yield "-- The rulebook uses no other attribute."
        return
    yield "-- The rulebook uses more attributes. By default user is $remote_user, and any other attribute is the"
    yield "-- nginx variable of the same name: plan is $plan. To use another variable, remove the dashes. Clients"
    yield "-- can send any header and any cookie: a variable of auth_request_set or of a map is safer."
    yield "attributes = {"
    for name, rules in unknown.items():
        variable = _SUGGESTED_VARIABLES.get(name, f"$http_x_{name}")
        yield f'  -- {name} = "{variable}",  -- {_rules_comment(name, rules)}'
    yield "},"


def _rules_comment(name: str, rules: Sequence[Rule]) -> str:
    comment = f"rule{'' if len(rules) == 1 else 's'} {', '.join(rule.name for rule in rules)}"
    strict = [rule.name for rule in rules if rule.missing == "deny" and name in _required_attributes(rule)]
    return f"{comment}; without it {', '.join(strict)} refuses every call" if strict else comment


def _required_attributes(rule: Rule) -> set[str]:
    costs = [] if rule.cost is None else [rule.cost.otherwise, *(value for _, value in rule.cost.cases)]
    return {dimension.name for dimension in rule.key} | {cost for cost in costs if isinstance(cost, str)}


def _server(book: Rulebook, gate: NginxOptions) -> Iterator[str]:
    yield f"listen {gate.listen};"
    yield ""
    yield "# Every request is decided here. A location with an access_by_lua of its own needs this line, too."
    yield 'access_by_lua_block { require("resty.headgate").access() }'
    if any(limit.is_held for rule in book.rules for limit in limits_of(rule)):
        yield "# Slots go back when their request ends, and adaptive limits learn how it went."
        yield 'log_by_lua_block { require("resty.headgate").log() }'
    else:
        yield "# Slots would go back, and adaptive limits learn, when a request ends. No rule needs that, and each"
        yield "# request would pay for it:"
        yield '# log_by_lua_block { require("resty.headgate").log() }'
    yield ""
    yield "# Metrics for Prometheus, which are neither limited nor counted:"
    yield "# location = /metrics {"
    yield "#   allow 127.0.0.1;"
    yield "#   deny all;"
    yield "#   access_by_lua_block { return }"
    yield "#   log_by_lua_block { return }"
    yield '#   content_by_lua_block { require("resty.headgate").metrics() }'
    yield "# }"
    yield ""
    yield "location / {"
    yield f"  proxy_pass {gate.backend};"
    yield "  proxy_set_header Host $host;"
    yield "  proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
    yield "  proxy_http_version 1.1;"
    yield '  proxy_set_header Connection "";'
    yield "}"


def _indent(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield f"  {line}" if line else ""


def _lua_string(text: str) -> str:
    """Returns a text as a literal that Lua and nginx's parser of Lua blocks both read."""
    escaped = re.sub(r'[\\"\x00-\x1f\x7f]', lambda match: f"\\{ord(match[0]):03d}", text)
    return f'"{escaped}"'


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
