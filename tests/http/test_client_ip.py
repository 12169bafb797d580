"""The client's address is the right-most that is no trusted proxy's, and clients cannot forge it."""

import ipaddress
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidSetting
from headgate.http.client_ip import Proxies
from headgate.rules.ip_networks import canonical

TRUSTED = ["127.0.0.0/8", "::1", "10.0.0.0/8", "fd00::/8", "unix"]
CLIENT, PROXY = "203.0.113.7", "10.0.0.1"


@pytest.fixture(scope="module")
def proxies() -> Proxies:
    return Proxies(TRUSTED)


STORIES = [
    # peer, X-Forwarded-For, the client
    (CLIENT, None, CLIENT),
    (CLIENT, "6.6.6.6", CLIENT),
    (CLIENT, "10.0.0.9", CLIENT),
    (PROXY, None, PROXY),
    (PROXY, "", PROXY),
    (PROXY, CLIENT, CLIENT),
    (PROXY, f"6.6.6.6, {CLIENT}", CLIENT),
    (PROXY, f"6.6.6.6,{CLIENT},10.0.0.2,\t127.0.0.1 ", CLIENT),
    (PROXY, f"6.6.6.6, {CLIENT}, ,,10.0.0.2,", CLIENT),
    (PROXY, "10.0.0.3, 10.0.0.2", "10.0.0.3"),
    (PROXY, "unknown, 10.0.0.2", "10.0.0.2"),
    (PROXY, f"{CLIENT}, unknown, 10.0.0.3, 10.0.0.2", "10.0.0.3"),
    (PROXY, f"{CLIENT}, unknown", PROXY),
    (PROXY, f"{CLIENT}, 10.0.0.300", PROXY),
    (PROXY, f"{CLIENT}; 10.0.0.2", PROXY),
    (PROXY, f"for={CLIENT}", PROXY),
    (PROXY, "!,192.0.2.2", "192.0.2.2"),
    # ports, zones, and one address in two ways
    (f"{PROXY}:4711", f"{CLIENT}:567", CLIENT),
    ("[::1]:80", "[2001:db8::1]:80", "2001:db8::1"),
    ("[::1]", "[2001:DB8::1]", "2001:db8::1"),
    ("::1", "2001:db8:0::1", "2001:db8::1"),
    ("::ffff:10.0.0.1", "::ffff:203.0.113.7", CLIENT),
    ("[::ffff:10.0.0.1]:80", "::ffff:cb00:7107", CLIENT),
    ("fd00::1%eth0", "fe80::1%eth0", "fe80::1"),
    ("203.0.113.9:1", "1.2.3.4", "203.0.113.9"),
    (PROXY, f"{CLIENT}:x", PROXY),
    (PROXY, f"{CLIENT}:123456", PROXY),
    (PROXY, f"[{CLIENT}]:80", PROXY),
    (PROXY, "[2001:db8::1", PROXY),
    # a socket file has no address; nginx writes unix: for it
    ("unix:", CLIENT, CLIENT),
    ("", CLIENT, CLIENT),
    ("unix:/run/" + "long/" * 20, CLIENT, CLIENT),
    ("unix:", None, ""),
    (PROXY, f"{CLIENT}, unix:, 10.0.0.2", CLIENT),
]


@pytest.mark.parametrize(("peer", "forwarded_for", "client"), STORIES)
def test_the_client_address_behind_proxies(
    proxies: Proxies, peer: str, forwarded_for: str | None, client: str
) -> None:
    for _ in range(2):  # the second time it may be remembered
        assert proxies.client(peer, forwarded_for) == client


@pytest.mark.parametrize("peer", ["unix:", "", "what"])
def test_a_peer_without_an_address_is_believed_only_if_unix_is_trusted(peer: str) -> None:
    alone = Proxies(["10.0.0.0/8"])
    assert alone.client(peer, CLIENT) == ""
    assert alone.behind(peer, CLIENT) is None
    assert alone.client(PROXY, f"{CLIENT}, unix:") == PROXY
    assert Proxies([]).client(PROXY, CLIENT) == PROXY


def test_a_list_is_read_as_far_as_64_hops(proxies: Proxies) -> None:
    hops = [f"10.0.1.{n}" for n in range(70)]
    assert proxies.client(PROXY, ", ".join([CLIENT, *hops[:63]])) == CLIENT
    assert proxies.client(PROXY, ", ".join([CLIENT, *hops[:64]])) == hops[0]
    assert proxies.client(PROXY, "," * 65536) == PROXY
    assert proxies.client(PROXY, "9.9.9.9, " * 8000 + CLIENT) == CLIENT


def test_the_address_cache_is_bounded() -> None:
    proxies = Proxies(TRUSTED)
    for n in range(5000):
        proxies.client(f"10.1.{n // 250}.{n % 250}:{n}", f"198.51.{n // 250}.{n % 250}")
    proxies.client(PROXY, CLIENT + "," + "x" * 65)
    assert proxies._cached_walk.cache_info().currsize <= 4096
    assert proxies._cached_peer.cache_info().currsize <= 4096
    before = proxies._cached_walk.cache_info().misses
    proxies.client(PROXY, f"{'x' * 65},{CLIENT}")
    assert proxies._cached_walk.cache_info().misses == before


ADDRESSES = st.ip_addresses().map(str)
OUTSIDE = ADDRESSES.filter(lambda text: Proxies(TRUSTED).behind(text, None) is None).map(str)
INSIDE = st.integers(1, 2**24 - 2).map(lambda n: str(ipaddress.IPv4Address((10 << 24) + n))) | st.integers(
    1, 2**64
).map(lambda n: str(ipaddress.IPv6Address((0xFD << 120) + n)))
ANYTHING = st.none() | st.text(max_size=30) | st.lists(ADDRESSES | INSIDE | st.text(max_size=5)).map(",".join)


@given(OUTSIDE, ANYTHING, st.sampled_from(["{}", "{}:1", "[{}]:1"]))
def test_an_untrusted_peer_is_itself_whatever_it_writes(peer: str, written: str | None, form: str) -> None:
    spelled = form.format(peer) if (":" in peer) == ("[" in form) else peer
    proxies = Proxies(TRUSTED)
    assert proxies.client(spelled, written) == canonical(peer)
    assert proxies.behind(spelled, written) is None


def spelled(address: str, port: int | None) -> str:
    if port is None:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@given(OUTSIDE, ANYTHING, st.lists(INSIDE, min_size=1, max_size=8), st.data())
def test_behind_proxies_that_append_what_they_saw_a_client_is_itself(
    client: str, written: str | None, chain: Sequence[str], data: st.DataObject
) -> None:
    """A chain of k proxies of ours: each appends its peer, and the last one is the peer of the service."""
    field = written
    for seen in [client, *chain[:-1]]:
        hop = spelled(seen, data.draw(st.none() | st.integers(0, 65535)))
        field = hop if not field else field + data.draw(st.sampled_from([",", ", ", " ,\t"])) + hop
    assert Proxies(TRUSTED).client(chain[-1], field) == canonical(client)


@given(st.text(max_size=80), ANYTHING)
def test_nothing_is_an_error_and_every_answer_is_an_address_or_empty(peer: str, written: str | None) -> None:
    client = Proxies(TRUSTED).client(peer, written)
    assert client == "" or canonical(client) == client


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("10.0.0.1/8", '"10.0.0.1/8" has bits beyond its /8: write 10.0.0.0/8 for the network.'),
        ("10.0.0.1:80", '"10.0.0.1:80" is no network: write 10.0.0.1.'),
        ("[::1]:80", '"[::1]:80" is no network: write ::1.'),
        ("localhost", '"localhost" is no network: write 127.0.0.0/8 and ::1.'),
        ("Unix", '"Unix" is no network: write unix.'),
        ("unix:", '"unix:" is no network: write unix.'),
        ("*", '"*" is no network: write 0.0.0.0/0 and ::/0, if every peer is to be trusted.'),
        ("", '"" is no network: write 10.0.0.0/8, ::1, or "unix".'),
        ("10.0.0.0/33", '"10.0.0.0/33" is no network: write 10.0.0.0/8, 192.0.2.7 or fd00::/8.'),
        ("gateway.local", '"gateway.local" is no network: write 10.0.0.0/8, 192.0.2.7 or fd00::/8.'),
    ],
)
def test_an_invalid_network_is_refused_with_a_suggestion(text: str, sentence: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        Proxies(["127.0.0.1", text])
    assert str(raised.value) == f"The trusted proxies: {sentence}"
