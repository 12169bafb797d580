"""nginx's allow-lists: which calls a map takes out of a count, as a condition for a rule's `except`.

    geo $limit { default 1; 10.0.0.0/8 0; }                 except: {address: 10.0.0.0/8}
    map $limit $key { 0 ""; 1 $binary_remote_addr; }        key: address

    map $request_method $key { POST $binary_remote_addr; }  except: {not: {method: POST}}

nginx does not count a call whose key is empty. So a map whose values are one key or nothing says for which values
of its source a call is exempt, and a geo says which addresses have these values: those of the smallest network
that holds the address. Regular expressions, included files and proxies of a geo cannot be said here: then it is
None.

Law (tests/rules/imports/test_nginx_allow_lists.py): for any address and these forms, the condition holds just if
nginx does not count the call.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headgate.rules.imports.nginx_conf_parser import Directive
from headgate.rules.imports.rulebook_draft import one_or_all

Condition = dict[str, Any]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
IsExempt = Callable[[str], bool]

_REMOTE = ("$remote_addr", "$binary_remote_addr")
_OPTIONS = {"geo": ("proxy", "proxy_recursive", "delete", "include"), "map": ("hostnames", "volatile", "include")}
_literal = re.compile(r"[\w.:/@+=-]*")  # what a glob takes as it is


class AllowList(NamedTuple):
    """The key of the calls that are counted, and which calls are not."""

    key: str
    exempt: Any  # a condition, or a list of which one holds
    ignores_case: bool  # nginx does, where the condition does not


def allow_list(
    made: Directive, geos: dict[str, Directive], attribute_of: Callable[[str], str | None]
) -> AllowList | None:
    """What a map says; None if it is no allow-list, or cannot be said. `attribute_of` knows plain variables."""
    entries = _entries(made) if made.name == "map" and len(made.arguments) == 2 else None
    if entries is None:
        return None
    keys = {value for value in entries.values() if value}
    if len(keys) != 1:
        return None
    values = {pattern.lower(): value for pattern, value in entries.items()}  # a map ignores case
    otherwise = values.pop("default", "")
    source = made.arguments[0]
    (key,) = keys
    if source in geos:
        found = _of_geo(geos[source], lambda value: not values.get(value.lower(), otherwise))
        return None if found is None else AllowList(key, found, ignores_case=False)
    attribute = attribute_of(source)
    if attribute is None or attribute == "path":
        return None
    named = [pattern for pattern in entries if pattern.lower() != "default"]
    found = _of_values(attribute, {pattern: not entries[pattern] for pattern in named}, exempt=not otherwise)
    return None if found is None else AllowList(key, found, attribute not in ("method", "host", "address"))


def _entries(block: Directive) -> dict[str, str] | None:
    """Each pattern of a map or a geo with its value; None if there is more than texts."""
    found: dict[str, str] = {}
    for one in block.block:
        if one.name == "ranges" and not one.arguments:
            continue
        if one.name in _OPTIONS[block.name] or one.name[:1] in ("~", "\\") or len(one.arguments) != 1:
            return None
        found[one.name] = one.arguments[0]
    return found


def _of_values(attribute: str, patterns: dict[str, bool], exempt: bool) -> Any:
    """`patterns`: whether a call with that value is exempt; `exempt`: whether all others are."""
    told = [pattern for pattern, each in patterns.items() if each is not exempt]
    if not told or not all(_literal.fullmatch(pattern) for pattern in told):
        return None
    values = [pattern for pattern in told if pattern]
    if attribute == "address" and not all(_networks(value) for value in values):
        return None
    tests: list[Condition] = [{attribute: one_or_all(values)}] if values else []
    if "" in told:
        tests.append({attribute: False})
    return {"not": one_or_all(tests)} if exempt else one_or_all(tests)


def _of_geo(geo: Directive, is_exempt: IsExempt) -> Any:
    entries = (
        _entries(geo) if geo.name == "geo" and (len(geo.arguments) == 1 or geo.arguments[0] in _REMOTE) else None
    )
    if entries is None:
        return None
    otherwise = is_exempt(entries.pop("default", ""))
    networks: dict[Network, bool] = {}
    for text, value in entries.items():
        found = _networks(text)
        if not found:
            return None
        networks |= dict.fromkeys(found, is_exempt(value))
    tree = _Tree(networks)
    told = [tree.region(network) for network in tree.others(None, otherwise)]
    if not told:
        return None
    return {"not": _either(told)} if otherwise else _either(told)


def _networks(text: str) -> list[Network]:
    """The networks that a geo writes as 10.0.0.0/8, 10.0.0.1 or 10.0.0.1-10.0.0.9; none if it is not one."""
    first, dash, last = text.partition("-")
    try:
        if not dash:
            return [ipaddress.ip_network(text, strict=False)]
        return list(ipaddress.summarize_address_range(ipaddress.ip_address(first), ipaddress.ip_address(last)))
    except (ValueError, TypeError):
        return []


class _Tree:
    """Networks by what lies within what; the smallest that holds an address speaks for it."""

    def __init__(self, networks: dict[Network, bool]) -> None:
        self._exempt = networks
        self._inner: dict[Network | None, list[Network]] = {}
        for network in networks:
            self._inner.setdefault(self._around(network), []).append(network)

    def _around(self, network: Network) -> Network | None:
        for length in range(network.prefixlen - 1, -1, -1):
            around = network.supernet(new_prefix=length)
            if around in self._exempt:
                return around
        return None

    def others(self, around: Network | None, exempt: bool) -> Iterator[Network]:
        """The outermost networks inside that are not like this."""
        for network in self._inner.get(around, ()):
            if self._exempt[network] is exempt:
                yield from self.others(network, exempt)
            else:
                yield network

    def region(self, network: Network) -> Condition:
        """Where the network, and those inside which are like it, speak."""
        inner = [self.region(other) for other in self.others(network, self._exempt[network])]
        single = network.prefixlen == network.max_prefixlen
        address: Condition = {"address": str(network.network_address if single else network)}
        return {**address, "not": _either(inner)} if inner else address


def _either(regions: list[Condition]) -> Any:
    """One of several regions, as short as it can be written."""
    simple = [region["address"] for region in regions if "not" not in region]
    joined: list[Condition] = [{"address": one_or_all(simple)}] if simple else []
    return one_or_all([*joined, *(region for region in regions if "not" in region)])
