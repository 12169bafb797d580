"""A gateway's sub-request is the client's request again: nothing is lost, and nothing is smuggled in."""

from collections.abc import Callable, Sequence
from typing import Any, get_args
from urllib.parse import unquote, unquote_to_bytes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.http.client_ip import Proxies
from headgate.rules.attributes import request
from headgate.service.forward_auth import GatewayKind, InvalidSubrequest, forwarded_attributes
from tests.service.recorded_sub_requests import CADDY, ENVOY, NGINX, TARGET, TRAEFIK

PROXIES = Proxies(["127.0.0.0/8", "10.0.0.0/8", "unix"])
GATEWAY, CLIENT = "10.0.0.1:4711", "203.0.113.7"
Pairs = list[tuple[str, str]]

GATEWAY_FIELDS: dict[GatewayKind, Pairs] = {
    "auth_request": [
        ("X-Original-Method", "PUT"),
        ("X-Original-URI", "/a%2Fb?q=1"),
        ("X-Original-Host", "Shop.example:81"),
        ("X-Forwarded-For", f"6.6.6.6, {CLIENT}"),
    ],
    "forward_auth": [
        ("X-Forwarded-Method", "PUT"),
        ("X-Forwarded-Uri", "/a%2Fb?q=1"),
        ("X-Forwarded-Host", "Shop.example:81"),
        ("X-Forwarded-For", CLIENT),
    ],
    "ext_authz": [("host", "Shop.example:81"), ("x-forwarded-for", f"6.6.6.6,{CLIENT}")],
}
CLIENT_FIELDS: Pairs = [
    ("cookie", "a=b"),
    ("cookie", "c=d"),
    ("authorization", "Basic x"),
    ("x-a", "1"),
    ("X-A", "2"),
]
KINDS: tuple[GatewayKind, ...] = get_args(GatewayKind)


def attributes_of(kind: GatewayKind, headers: Sequence[tuple[Any, Any]], peer: str = GATEWAY) -> dict[str, str]:
    if kind == "ext_authz":
        return forwarded_attributes(kind, "PUT", "/a/b", "q=1", headers, peer, PROXIES)
    return forwarded_attributes(kind, "GET", "/check", "r=2", headers, peer, PROXIES)


EXPECTED = request("PUT", "/a%2Fb?q=1", [("Host", "Shop.example:81"), *CLIENT_FIELDS], CLIENT)


@pytest.mark.parametrize("kind", KINDS)
def test_the_clients_request(kind: GatewayKind) -> None:
    assert EXPECTED["host"] == "shop.example"
    assert (EXPECTED["path"], EXPECTED["cookie.c"], EXPECTED["header.x-a"]) == ("/a/b", "d", "1, 2")
    assert attributes_of(kind, GATEWAY_FIELDS[kind] + CLIENT_FIELDS) == EXPECTED
    assert (
        attributes_of(
            kind, [(name.upper().encode(), value.encode()) for name, value in CLIENT_FIELDS + GATEWAY_FIELDS[kind]]
        )
        == EXPECTED
    )
    assert attributes_of(kind, GATEWAY_FIELDS[kind] + CLIENT_FIELDS, peer="unix:") == EXPECTED


BETWEEN = [
    ("Host", "headgate:8080"),
    ("X-Real-IP", "7.7.7.7"),
    ("X_Original_URI", "/evil"),
    ("x_forwarded_for", "7.7.7.7"),
    ("X-Forwarded_Uri", "/evil"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Server", "vm"),
    ("X-Envoy-External-Address", "8.8.8.8"),
    ("X-Envoy-Original-Path", "/evil"),
    ("Via", "1.1 Caddy"),
    ("Content-Length", "0"),
    ("Connection", "close"),
    ("Keep-Alive", "timeout=5"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_hop_by_hop_fields_are_no_attributes(kind: GatewayKind) -> None:
    names = {name.lower() for name, _ in GATEWAY_FIELDS[kind]}
    others = [pair for other in KINDS for pair in GATEWAY_FIELDS[other]] + BETWEEN
    noise = [(name, "/evil") for name, _ in others if name.lower() not in names]
    assert attributes_of(kind, noise + GATEWAY_FIELDS[kind] + noise + CLIENT_FIELDS) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_a_peer_that_is_no_trusted_proxy_is_not_believed(kind: GatewayKind) -> None:
    for headers in (GATEWAY_FIELDS[kind] + CLIENT_FIELDS, []):
        with pytest.raises(InvalidSubrequest, match=r'"203.0.113.9:80" is not among the trusted proxies'):
            attributes_of(kind, headers, peer="203.0.113.9:80")


SENTENCES: dict[str, str] = {
    "auth_request X-Original-Method": "Where nginx asks, set proxy_set_header X-Original-Method $request_method;",
    "auth_request X-Original-URI": "Where nginx asks, set proxy_set_header X-Original-URI $request_uri;",
    "auth_request X-Original-Host": "Where nginx asks, set proxy_set_header X-Original-Host $host;",
    "auth_request X-Forwarded-For": "nginx asks, set proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;",
    "forward_auth X-Forwarded-Uri": "and Caddy's forward_auth write it: ask through one of these.",
    "ext_authz X-Forwarded-For": "In Envoy, set use_remote_address: true, and allow ext_authz x-forwarded-for in "
    "allowed_headers.",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_is_read_is_needed_once(kind: GatewayKind) -> None:
    for pair in GATEWAY_FIELDS[kind]:
        rest = [other for other in GATEWAY_FIELDS[kind] if other is not pair] + CLIENT_FIELDS
        name = pair[0]
        is_list, is_host = name.lower() == "x-forwarded-for", name.lower().endswith("host")
        cases = [(rest, "is missing")]
        cases += [] if is_list else [([*rest, pair, (name, "x")], "came twice")]
        cases += [] if is_host else [([*rest, (name, "")], "is missing")]
        for headers, fault in cases:
            with pytest.raises(InvalidSubrequest) as raised:
                attributes_of(kind, headers)
            sentence = str(raised.value)
            assert fault in sentence
            assert sentence.lower().startswith(name.lower() + " ")
            spelled = sentence.partition(" ")[0]
            assert sentence.endswith(SENTENCES.get(f"{kind} {spelled}", "."))


@pytest.mark.parametrize("kind", ["auth_request", "forward_auth"])
def test_a_request_without_a_host(kind: GatewayKind) -> None:
    """Of HTTP/1.0. Caddy and Traefik then write an empty field; Envoy refuses such a request itself."""
    headers = [(name, "" if name.endswith("Host") else value) for name, value in GATEWAY_FIELDS[kind]]
    assert attributes_of(kind, headers) == request("PUT", "/a%2Fb?q=1", [], CLIENT)


@pytest.mark.parametrize("kind", ["auth_request", "forward_auth"])
def test_the_gateway_names_the_host_whatever_the_target_says(kind: GatewayKind) -> None:
    headers = [
        (name, "http://evil.example/a%2Fb?q=1" if name.lower().endswith("uri") else value)
        for name, value in GATEWAY_FIELDS[kind]
    ]
    assert attributes_of(kind, headers + CLIENT_FIELDS) == EXPECTED


@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_a_list_are_one_list(kind: GatewayKind) -> None:
    rest = [pair for pair in GATEWAY_FIELDS[kind] if pair[0].lower() != "x-forwarded-for"]
    lines = [("X-Forwarded-For", line) for line in ("6.6.6.6", f"9.9.9.9, {CLIENT}", "10.0.0.9")]
    assert attributes_of(kind, rest + lines)["address"] == CLIENT


@pytest.mark.parametrize("kind", KINDS)
def test_64_kilobytes_change_nothing(kind: GatewayKind) -> None:
    long = "z" * 65536
    attributes = attributes_of(
        kind, [*GATEWAY_FIELDS[kind], *CLIENT_FIELDS, ("x-long", long), (long, "1"), ("x-original-" + long, "1")]
    )
    assert attributes == EXPECTED | {"header.x-long": long, "header." + long: "1"}
    spoofed = [
        (n, "6.6.6.6, " * 7000 + v if n.lower() == "x-forwarded-for" else v) for n, v in GATEWAY_FIELDS[kind]
    ]
    assert attributes_of(kind, spoofed + CLIENT_FIELDS) == EXPECTED


SENT = [("X-A", "1"), ("X-A", "2"), ("Cookie", "a=b"), ("Cookie", "c=d")]
SENT += [("Authorization", "Basic x"), ("User-Agent", "t"), ("Host", "Ex.com:81")]


def recorded(kind: GatewayKind, text: str) -> dict[str, str]:
    first, *lines = text.split("\n")
    method, target, _ = first.split(" ")
    path, _, query = target.removeprefix("/envoy").partition("?")
    headers = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    return forwarded_attributes(kind, method, unquote(path), query, headers, GATEWAY, Proxies(["10.0.0.1"]))


def test_recorded_requests_of_real_gateways() -> None:
    sent = request("PUT", TARGET, SENT, "127.0.0.1")
    assert (sent["path"], sent["cookie.c"]) == ("/a/c/d", "d")
    go = {"header.accept-encoding": "gzip"}
    assert recorded("auth_request", NGINX) == sent | {"header.host": "ex.com"}
    assert recorded("forward_auth", CADDY) == sent | go
    assert recorded("forward_auth", TRAEFIK) == sent | go | {"path": "/c/d"}  # it reads dots before escapes
    joined = {"header.x-a": "1,2", "header.cookie": "a=b; c=d"}
    added = {"address": "192.0.2.2", "header.x-request-id": "c38310a0-551a-473e-8bc0-eab6adf10c95"}
    assert recorded("ext_authz", ENVOY) == sent | joined | added


@pytest.mark.parametrize("second", ["n=2", "junk", "n=2; m=3", "sid", "=x", "sid=1", ",,;"])
def test_a_second_line_of_cookies_makes_no_other_session_behind_envoy(second: str) -> None:
    for line in (f"sid=1,{second}", f"{second},sid=1", f"a=b; sid=1 , {second}"):
        assert attributes_of("ext_authz", [*GATEWAY_FIELDS["ext_authz"], ("Cookie", line)])["cookie.sid"] == "1"
    for lines in (["sid=1,sid=2"], ["z=1,sid=2; sid=1"], ["sid=1", "z=0,sid=2"]):
        with pytest.raises(InvalidSubrequest, match="one of them has two values"):
            attributes_of("ext_authz", [*GATEWAY_FIELDS["ext_authz"], *(("cookie", line) for line in lines)])
    whole = attributes_of("ext_authz", [*GATEWAY_FIELDS["ext_authz"], ("cookie", "sid=1; sid=2")])
    assert (whole["cookie.sid"], whole["header.cookie"]) == ("1", "sid=1; sid=2")
    assert (
        attributes_of("auth_request", [*GATEWAY_FIELDS["auth_request"], ("cookie", "a=1,b=2")])["cookie.a"]
        == "1,b=2"
    )


NAMES = st.sampled_from(
    [name for name, _ in BETWEEN + CLIENT_FIELDS]
    + [name for kind in KINDS for name, _ in GATEWAY_FIELDS[kind] if name != "host"]
) | st.text("aXx-_", min_size=1, max_size=6)
VALUES = st.text(st.characters(max_codepoint=0x2FF, exclude_characters="\r\n\0"), max_size=12) | st.sampled_from(
    ["/evil", "6.6.6.6", "10.0.0.9", "a=1; b=2", "", "unix:"]
)
PIECES = [
    "/",
    ".",
    "..",
    "a",
    "%2F",
    "%252F",
    "%25",
    "%3f",
    "%23",
    "%2e",
    "%E9",
    "%C3%A9",
    "é",
    "%",
    "%zz",
    "+",
    ";",
]
TARGETS = st.tuples(
    st.lists(st.sampled_from(PIECES), max_size=6).map("".join),
    st.just("")
    | st.lists(st.sampled_from([*PIECES, "?", "&", "="]), max_size=6).map(lambda query: "?" + "".join(query)),
).map(lambda parts: "/" + "".join(parts))
HOSTS = st.text("aB.:8[]", min_size=1, max_size=8)
METHODS = st.sampled_from(["GET", "post", "PURGE", "M-SEARCH"])
READ_BY_GATEWAYS = ("x-original-", "x-forwarded-", "x-envoy-", "keep-alive")
BETWEEN_NAMES = {"host", "x-real-ip", "via", "content-length", "connection"}


SubRequest = tuple[GatewayKind, str, str, str, Pairs]


def without(headers: Pairs, *names: str) -> Pairs:
    return [pair for pair in headers if pair[0].lower() not in names]


def appended(headers: Pairs, address: str) -> str:
    sent = [value for name, value in headers if name.lower() == "x-forwarded-for"]
    return ", ".join([*sent, address])


def one_line_each(headers: Pairs) -> Pairs:
    lines: dict[str, str] = {}
    for name, value in headers:
        before = lines.get(name.lower())
        lines[name.lower()] = value if before is None else f"{before},{value}"
    return list(lines.items())


def nginx(method: str, target: str, host: str, headers: Pairs, address: str) -> SubRequest:
    """As nginx does with the four lines of the docstring."""
    read = {"x-original-method": method, "x-original-uri": target, "x-original-host": host}
    read["x-forwarded-for"] = appended(headers, address)
    return (
        "auth_request",
        "GET",
        "/check",
        "",
        [*read.items(), ("host", "headgate"), *without(headers, *read, "host")],
    )


def caddy(method: str, target: str, host: str, headers: Pairs, address: str) -> SubRequest:
    read = {"x-forwarded-method": method, "x-forwarded-uri": target, "x-forwarded-host": host}
    read["x-forwarded-for"] = address
    return (
        "forward_auth",
        "GET",
        "/check",
        "q=evil",
        [("host", host), *without(headers, *read, "host"), *read.items()],
    )


def envoy(method: str, target: str, host: str, headers: Pairs, address: str) -> SubRequest:
    """It makes one line of several; and granian reads escapes."""
    path, _, query = target.partition("?")
    forwarded = one_line_each(without(headers, "host", "x-forwarded-for"))
    field = ("x-forwarded-for", appended(headers, address))
    return (
        "ext_authz",
        method,
        unquote_to_bytes(path).decode(errors="replace"),
        query,
        [("host", host), *forwarded, field],
    )


@settings(max_examples=300)
@given(
    st.sampled_from([nginx, caddy, envoy]),
    METHODS,
    TARGETS,
    HOSTS,
    st.lists(st.tuples(NAMES, VALUES), max_size=8),
    st.sampled_from([CLIENT, "2001:db8::1"]),
)
def test_the_sub_request_of_any_request_has_the_attributes_of_that_request(
    gateway: Callable[..., SubRequest], method: str, target: str, host: str, headers: Pairs, address: str
) -> None:
    original = [
        pair
        for pair in headers
        if (name := pair[0].lower().replace("_", "-")) not in BETWEEN_NAMES
        and not name.startswith(READ_BY_GATEWAYS)
    ]
    if gateway is envoy:  # of its cookies below
        headers, original = without(headers, "cookie"), one_line_each(without(original, "cookie"))
    expected = request(method, target, [("Host", host), *original], address)
    if gateway is envoy:  # what is not UTF-8 is lost in granian
        expected["path"] = expected["path"].encode(errors="surrogateescape").decode(errors="replace")
    assert forwarded_attributes(*gateway(method, target, host, headers, address), GATEWAY, PROXIES) == expected


WORDS = st.text("ab1 %é", min_size=1, max_size=4).filter(str.strip)
JARS = st.dictionaries(WORDS, WORDS, min_size=1, max_size=6).map(
    lambda jar: {name.strip(): value for name, value in jar.items()}
)


@given(JARS, st.data())
def test_cookies_in_any_lines_are_the_same_cookies_behind_envoy(jar: dict[str, str], data: st.DataObject) -> None:
    line = "".join(f"{data.draw(st.sampled_from(';,'))}{name}={value}" for name, value in jar.items())[1:]
    attributes = attributes_of("ext_authz", [*GATEWAY_FIELDS["ext_authz"], ("cookie", line)])
    cookies = {name: value for name, value in attributes.items() if name.startswith("cookie.")}
    assert cookies == {f"cookie.{name}": value.strip() for name, value in jar.items()}


RAW = st.text(max_size=10) | st.binary(max_size=10)


@settings(max_examples=300)
@given(
    st.sampled_from(KINDS),
    st.tuples(st.text(max_size=6), st.text(max_size=12), st.text(max_size=12)),
    st.lists(st.tuples(NAMES | RAW, RAW), max_size=8),
    st.booleans(),
    st.sampled_from([GATEWAY, "unix:", CLIENT]) | st.text(max_size=8),
)
def test_nothing_but_a_sentence_is_ever_raised(
    kind: GatewayKind, line: tuple[str, str, str], headers: list[tuple[Any, Any]], complete: bool, peer: str
) -> None:
    try:
        attributes: dict[str, str] | None = forwarded_attributes(
            kind, *line, headers + (GATEWAY_FIELDS[kind] if complete else []), peer, PROXIES
        )
    except InvalidSubrequest:
        attributes = None
    assert attributes is None or attributes["path"].startswith("/")
