"""The client's address by Forwarded (RFC 7239): a corpus of spoofing attempts, and the laws of X-Forwarded-For."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import InvalidSetting
from headgate.http.client_ip import Proxies
from headgate.rules.ip_networks import canonical
from tests.http.test_client_ip import ANYTHING, CLIENT, INSIDE, OUTSIDE, PROXY, TRUSTED

# peer, Forwarded, the client
STORIES = [
    (CLIENT, None, CLIENT),
    (PROXY, None, PROXY),
    (PROXY, "", PROXY),
    (PROXY, f"for={CLIENT}", CLIENT),
    (PROXY, f"For={CLIENT};Proto=https;By=10.0.0.1", CLIENT),
    (PROXY, f'by=10.0.0.1 ; for="{CLIENT}:4711";', CLIENT),
    (PROXY, 'for="[2001:db8::1]:4711"', "2001:db8::1"),
    (PROXY, 'for="[2001:DB8:0::1]"', "2001:db8::1"),
    (PROXY, f"for={CLIENT}, for=10.0.0.3;proto=http, for=10.0.0.2", CLIENT),
    (PROXY, f"for={CLIENT}, for=unknown", PROXY),
    (PROXY, f"for={CLIENT}, for=_hidden, for=10.0.0.2", "10.0.0.2"),
    (PROXY, f"for={CLIENT}, proto=https", PROXY),
]

# What a client may send in the hope of being taken for 6.6.6.6, or for nobody. A proxy of ours appends for=CLIENT.
SPOOFS = [
    "for=6.6.6.6",
    "for=10.0.0.9",
    'for="6.6.6.6',
    'for=6.6.6.6;by="',
    'for="6.6.6.6\\',
    'for=6.6.6.6;by="a, b',
    "for=6.6.6.6,",
    "for=6.6.6.6;",
    "for=6.6.6.6, for=6.6.6.6, for=10.0.0.1",
    "6.6.6.6",
    "for",
    "=",
    ";;;",
    '"',
    "\\",
    "for = 6.6.6.6",
    "for=6.6.6.6;for=6.6.6.6",
    'for="[::ffff:6.6.6.6]"',
    "for=6.6.6.6\x00",
    "för=6.6.6.6",
    "unix",
    "," * 300,
    "for=6.6.6.6;" * 300,
]


@pytest.fixture(scope="module")
def proxies() -> Proxies:
    return Proxies(TRUSTED, "forwarded")


@pytest.mark.parametrize(("peer", "forwarded", "client"), STORIES)
def test_forwarded_names_the_client(proxies: Proxies, peer: str, forwarded: str | None, client: str) -> None:
    for _ in range(2):
        assert proxies.client(peer, forwarded) == client


@pytest.mark.parametrize("spoof", SPOOFS)
@pytest.mark.parametrize("hop", [f"for={CLIENT}", f'for="{CLIENT}:80";proto=https', f"by=10.0.0.1;for={CLIENT}"])
def test_no_spoof_reaches_beyond_the_first_proxy(proxies: Proxies, spoof: str, hop: str) -> None:
    assert proxies.client(PROXY, f"{spoof}, {hop}") == CLIENT
    assert proxies.client(PROXY, f'{spoof}, {hop}, for="[fd00::1]:1";by=10.0.0.1') == CLIENT
    assert proxies.client(CLIENT, spoof) == CLIENT


def test_two_addresses_in_one_element_are_none(proxies: Proxies) -> None:
    assert proxies.client(PROXY, f"for=6.6.6.6;for={CLIENT}") == PROXY


def _element(address: str, port: int | None) -> str:
    if port is None and ":" not in address:
        return f"for={address}"
    host = f"[{address}]" if ":" in address else address
    return f'for="{host}"' if port is None else f'for="{host}:{port}"'


@given(OUTSIDE, ANYTHING | st.sampled_from(SPOOFS), st.lists(INSIDE, min_size=1, max_size=8), st.data())
def test_behind_proxies_that_append_elements_a_client_is_itself(
    client: str, written: str | None, chain: Sequence[str], data: st.DataObject
) -> None:
    field = written
    for seen in [client, *chain[:-1]]:
        hop = _element(seen, data.draw(st.none() | st.integers(0, 65535)))
        hop = data.draw(st.sampled_from(["{}", "{};proto=https", 'by="[fd00::1]";{}'])).format(hop)
        field = hop if not field else field + data.draw(st.sampled_from([",", ", ", " ,\t"])) + hop
    assert Proxies(TRUSTED, "forwarded").client(chain[-1], field) == canonical(client)


@given(st.text(max_size=80), ANYTHING | st.text(alphabet='for=";,[]:. \\', max_size=60))
def test_no_forwarded_field_is_an_error(peer: str, written: str | None) -> None:
    client = Proxies(TRUSTED, "forwarded").client(peer, written)
    assert client == "" or canonical(client) == client


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidSetting, match='"x-real-ip" is no field that names clients'):
        Proxies([], "x-real-ip")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r'a list of networks, such as \["10.0.0.0/8"\]'):
        Proxies("10.0.0.0/8")
