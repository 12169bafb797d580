"""The attributes of a request: those in use, and the same that the rules' own reader finds."""

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.http.client_ip import Proxies
from headgate.integrations.request_parts import PartsReader, RequestParts
from headgate.integrations.shared_address import CALLS, MAX_ADDRESSES, SharedAddressAlarm
from headgate.rules.attributes import request

HEADERS = st.sampled_from(
    [b"Host", b"host", b"X-Plan", b"x_plan", b"Cookie", b"X-Forwarded-For", b"Forwarded", b"accept"]
)
VALUES = st.sampled_from([b"a", b" b ", b"sid=1; n=2", b"192.0.2.1, 10.0.0.2", b"for=192.0.2.9", b"\xff", b""])
NAMES = ["method", "path", "host", "header.x-plan", "header.accept", "cookie.sid", "argument.q", "address"]
PATHS = ["/", "/a/../b", "/%41%2e", "//x/", "/%ff"]


@given(
    names=st.sets(st.sampled_from(NAMES)),
    method=st.sampled_from(["GET", "get", "PROPFIND"]),
    path=st.sampled_from(PATHS),
    query=st.sampled_from(["", "q=1&q=2", "q=%20+a", "a"]),
    headers=st.lists(st.tuples(HEADERS, VALUES)),
)
def test_what_is_read_is_what_the_rules_read(
    names: set[str], method: str, path: str, query: str, headers: list[tuple[bytes, bytes]]
) -> None:
    parts = RequestParts(method, path.encode(), query.encode(), headers, "203.0.113.7", None)
    values = PartsReader(names, Proxies([]), SharedAddressAlarm())(parts)
    whole = request(method, f"{path}?{query}" if query else path, headers, "203.0.113.7")
    assert {name: values.get(name) for name in names} == {name: whole.get(name) for name in names}


@pytest.mark.parametrize(
    ("field", "headers", "client"),
    [
        ("x-forwarded-for", [("X-Forwarded-For", "6.6.6.6"), ("x-forwarded-for", "203.0.113.7")], "203.0.113.7"),
        ("x-forwarded-for", [("X-Forwarded-For", "203.0.113.7"), ("Forwarded", "for=6.6.6.6")], "203.0.113.7"),
        ("forwarded", [("X-Forwarded-For", "6.6.6.6"), ("Forwarded", "for=203.0.113.7")], "203.0.113.7"),
        ("forwarded", [("X-Forwarded-For", "6.6.6.6")], "10.0.0.1"),
        ("x-forwarded-for", [("X_Forwarded_For", "6.6.6.6")], "10.0.0.1"),
    ],
)
def test_only_the_field_that_the_proxy_writes_names_the_client(
    field: str, headers: Sequence[tuple[str, str]], client: str
) -> None:
    read = PartsReader({"address"}, Proxies(["10.0.0.0/8"], field), SharedAddressAlarm())  # type: ignore[arg-type]
    assert read(RequestParts("GET", "/", "", headers, "10.0.0.1", None)) == {"address": client}


def _send(
    alarm: SharedAddressAlarm, peers: Sequence[str], trusted: Sequence[str] = (), calls: int = CALLS
) -> None:
    read = PartsReader({"address"}, Proxies(trusted), alarm)
    for number in range(calls):
        peer = peers[number % len(peers)]
        read(RequestParts("GET", "/", "", [("X-Forwarded-For", f"198.51.100.{number % 250}")], peer, None))


def test_a_proxy_that_is_not_trusted_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    alarm = SharedAddressAlarm()
    with caplog.at_level(logging.WARNING):
        _send(alarm, ["10.0.0.1"], calls=CALLS - 1)
        assert not caplog.records
        _send(alarm, ["10.0.0.1"], calls=2 * CALLS)
    [record] = caplog.records
    assert record.getMessage().startswith("headgate: 1,000 calls from one address: set trusted_proxies.")
    assert 'trusted_proxies=["10.0.0.1"]' in record.getMessage()


def test_a_trusted_proxy_or_many_clients_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        _send(SharedAddressAlarm(), ["10.0.0.1"], trusted=["10.0.0.0/8"])
        _send(SharedAddressAlarm(), [f"192.0.2.{host}" for host in range(MAX_ADDRESSES + 1)])
    assert not caplog.records
