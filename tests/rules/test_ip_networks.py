"""Addresses: read in any spelling, written in one, grouped by networks."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidRule
from headgate.rules.ip_networks import Networks, canonical, network_of

V4 = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
V6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)


@given(V4 | V6)
def test_every_spelling_reads_the_same(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    short = canonical(str(address))
    assert short is not None
    assert canonical(address.exploded.upper()) == short
    assert canonical(short) == short


@given(V4, st.integers(1, 32), V6, st.integers(1, 128))
def test_addresses_are_grouped_as_networks_are(
    v4: ipaddress.IPv4Address, short: int, v6: ipaddress.IPv6Address, long: int
) -> None:
    around = ipaddress.ip_network(f"{v4}/{short}", strict=False)
    assert network_of(str(v4), short, 64) == (str(v4) if short == 32 else str(around))
    assert str(v4) in Networks([str(around)])
    if v6.ipv4_mapped is None:
        wide = ipaddress.ip_network(f"{v6}/{long}", strict=False)
        assert network_of(str(v6), 32, long) == (str(v6) if long == 128 else str(wide))
        assert str(v6) in Networks([str(wide)])


def test_a_mapped_network_is_the_network_it_maps() -> None:
    inside = Networks(["::ffff:10.0.0.0/104"])
    assert "10.1.2.3" in inside
    assert "11.1.2.3" not in inside
    assert "::1" not in inside


def test_an_invalid_address_is_in_no_network() -> None:
    assert "unix:" not in Networks(["0.0.0.0/0", "::/0"])
    assert canonical("unix:") is None
    assert network_of("unix:", 32, 64) is None


@pytest.mark.parametrize(
    "text", ["", "10", "10.0.0/8", "10.0.0.0/33", "10.0.0.0/255.0.0.0", "10.0.0.0/", "fe80::1%eth0", "home", "*"]
)
def test_networks_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidRule, match=r"is no network: write 10\.0\.0\.0/8, 192\.0\.2\.7 or fd00::/8"):
        Networks([text])


@pytest.mark.parametrize(("text", "meant"), [("10.1.0.0/8", "10.0.0.0/8"), ("fd00::1/8", "fd00::/8")])
def test_bits_beyond_the_length_are_a_mistake(text: str, meant: str) -> None:
    with pytest.raises(InvalidRule, match=f"has bits beyond its /8: write {meant} for the network"):
        Networks([text])
