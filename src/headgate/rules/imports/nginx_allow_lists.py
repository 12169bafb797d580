"""nginx allow-lists: translates a map that exempts calls into a condition for a rule's `except`.

    geo $limit { default 1; 10.0.0.0/8 0; }                 except: {address: 10.0.0.0/8}
    map $limit $key { 0 ""; 1 $binary_remote_addr; }        key: address

    map $request_method $key { POST $binary_remote_addr; }  except: {not: {method: POST}}

nginx does not count a call whose key is empty. So a map whose values are one key or empty tells which values of
its source exempt a call, and a geo tells which addresses have these values: the smallest network that holds the
address decides. Regular expressions, included files and proxies of a geo have no equivalent: then the result is
None.

Law (tests/rules/imports/test_nginx_allow_lists.py): for any address and these forms, the condition holds if and
only if nginx does not count the call.
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

_REMOTE_ADDRESS = ("$remote_addr", "$binary_remote_addr")
_OPTIONS = {"geo": ("proxy", "proxy_recursive", "delete", "include"), "map": ("hostnames", "volatile", "include")}
_glob_literal = re.compile(r"[\w.:/@+=-]*")  # characters without a meaning in a glob


class AllowList(NamedTuple):
    """The key of the calls that are counted, and the calls that are not."""

    key: str
    exempt: Any  # a condition, or a list of alternatives
    ignores_case: bool  # nginx ignores case where the condition does not


def allow_list(
    block: Directive, geos: dict[str, Directive], attribute_of: Callable[[str], str | None]
) -> AllowList | None:
    """Translates a map; None if it has no equivalent. `attribute_of` knows built-in variables."""
    entries = _entries(block) if block.name == "map" and len(block.arguments) == 2 else None
    if entries is None:
        return None
    keys = {value for value in entries.values() if value}
    if len(keys) != 1:
        return None
    values = {pattern.lower(): value for pattern, value in entries.items()}  # a map ignores case
    otherwise = values.pop("default", "")
    source = block.arguments[0]
    (key,) = keys
    if source in geos:
        exempt = _exempt_networks(geos[source], lambda value: not values.get(value.lower(), otherwise))
        return None if exempt is None else AllowList(key, exempt, ignores_case=False)
    attribute = attribute_of(source)
    if attribute is None or attribute == "path":
        return None
    patterns = [pattern for pattern in entries if pattern.lower() != "default"]
    exempt = _exempt_values(
        attribute, {pattern: not entries[pattern] for pattern in patterns}, exempt=not otherwise
    )
    return None if exempt is None else AllowList(key, exempt, attribute not in ("method", "host", "address"))


def _entries(block: Directive) -> dict[str, str] | None:
    """Returns each pattern of a map or a geo with its value; None if there is more than plain texts."""
    entries: dict[str, str] = {}
    for directive in block.block:
        if directive.name == "ranges" and not directive.arguments:
            continue
        if (
            directive.name in _OPTIONS[block.name]
            or directive.name[:1] in ("~", "\\")
            or len(directive.arguments) != 1
        ):
            return None
        entries[directive.name] = directive.arguments[0]
    return entries


def _exempt_values(attribute: str, patterns: dict[str, bool], exempt: bool) -> Any:
    """Returns the condition for exempt values.

    `patterns`: whether a call with that value is exempt; `exempt`: whether all others are.
    """
    exceptions = [pattern for pattern, is_exempt in patterns.items() if is_exempt is not exempt]
    if not exceptions or not all(_glob_literal.fullmatch(pattern) for pattern in exceptions):
        return None
    values = [pattern for pattern in exceptions if pattern]
    if attribute == "address" and not all(_networks(value) for value in values):
        return None
    tests: list[Condition] = [{attribute: one_or_all(values)}] if values else []
    if "" in exceptions:
        tests.append({attribute: False})
    return {"not": one_or_all(tests)} if exempt else one_or_all(tests)


def _exempt_networks(geo: Directive, is_exempt: IsExempt) -> Any:
    entries = (
        _entries(geo)
        if geo.name == "geo" and (len(geo.arguments) == 1 or geo.arguments[0] in _REMOTE_ADDRESS)
        else None
    )
    if entries is None:
        return None
    otherwise = is_exempt(entries.pop("default", ""))
    networks: dict[Network, bool] = {}
    for text, value in entries.items():
        parsed = _networks(text)
        if not parsed:
            return None
        networks |= dict.fromkeys(parsed, is_exempt(value))
    tree = _NetworkTree(networks)
    regions = [tree.region(network) for network in tree.opposite_networks(None, otherwise)]
    if not regions:
        return None
    return {"not": _any_region(regions)} if otherwise else _any_region(regions)


def _networks(text: str) -> list[Network]:
    """Parses 10.0.0.0/8, 10.0.0.1 or 10.0.0.1-10.0.0.9 of a geo into networks; none if it is invalid."""
    first_address, dash, last_address = text.partition("-")
    try:
        if not dash:
            return [ipaddress.ip_network(text, strict=False)]
        return list(
            ipaddress.summarize_address_range(
                ipaddress.ip_address(first_address), ipaddress.ip_address(last_address)
            )
        )
    except (ValueError, TypeError):
        return []


class _NetworkTree:
    """Networks nested in each other; the smallest that holds an address decides."""

    def __init__(self, networks: dict[Network, bool]) -> None:
        self._exempt = networks
        self._inner: dict[Network | None, list[Network]] = {}
        for network in networks:
            self._inner.setdefault(self._enclosing(network), []).append(network)

    def _enclosing(self, network: Network) -> Network | None:
        for length in range(network.prefixlen - 1, -1, -1):
            enclosing = network.supernet(new_prefix=length)
            if enclosing in self._exempt:
                return enclosing
        return None

    def opposite_networks(self, enclosing: Network | None, exempt: bool) -> Iterator[Network]:
        """Yields the outermost nested networks that differ."""
        for network in self._inner.get(enclosing, ()):
            if self._exempt[network] is exempt:
                yield from self.opposite_networks(network, exempt)
            else:
                yield network

    def region(self, network: Network) -> Condition:
        """Returns the condition for addresses for which the network, or a nested one that is like it, decides."""
        inner = [self.region(other) for other in self.opposite_networks(network, self._exempt[network])]
        single = network.prefixlen == network.max_prefixlen
        address: Condition = {"address": str(network.network_address if single else network)}
        return {**address, "not": _any_region(inner)} if inner else address


def _any_region(regions: list[Condition]) -> Any:
    """Returns the shortest form of a condition for several regions."""
    simple = [region["address"] for region in regions if "not" not in region]
    joined: list[Condition] = [{"address": one_or_all(simple)}] if simple else []
    return one_or_all([*joined, *(region for region in regions if "not" in region)])
