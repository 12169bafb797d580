"""A URL says in nginx what it says in Python; and what cannot be read gets a sentence without the login."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.engines import url_options
from headgate.engines.redis.server_address import ServerAddress
from headgate.engines.redis.topology import ClusterTopology, SentinelTopology, SingleServer, topology
from headgate.errors import InvalidRule
from tests.engines.redis.test_topology import BAD
from tests.engines.test_url_parts import PARTS
from tests.nginx.engines.redis.redis_harness import NginxRedisError, RedisDriverNginx


def python_address(address: ServerAddress) -> dict[str, Any]:
    login = address.login
    expected: dict[str, Any] = {"db": address.db, "text": address.text, "tls": address.tls is not None}
    expected["user"], expected["password"] = (login[0] if len(login) == 2 else None), login[-1] if login else None
    expected["greeting"] = b"".join(address.handshake_commands).decode() or None
    return expected


def lua_address(address: dict[str, Any]) -> dict[str, Any]:
    parsed = {name: address.get(name) for name in ("db", "text", "user", "password", "greeting")}
    return {**parsed, "tls": "tls" in address}


def python(url: str) -> Any:
    plain, chosen = url_options.split_rulebook_url(url)
    around = (chosen.deadline, chosen.fallback, chosen.nodes, chosen.effective_deadline, chosen.denial_cache)
    match topology(plain):
        case SingleServer() as one:
            only = one.node(b"")
            assert only is not None
            return "one", around, [python_address(only)]
        case ClusterTopology() as cluster:
            return "cluster", around, [python_address(seed) for seed in cluster._seeds]
        case SentinelTopology() as found:
            watchers = [python_address(watcher) for watcher in found._sentinels]
            template = found._template
            return "sentinel", around, watchers, found._name, template.login, template.db


def lua(gate: RedisDriverNginx, url: str) -> Any:
    answer = gate.call_driver("url", url=url)
    around = tuple(answer.get(name) for name in ("deadline", "fallback", "nodes", "timeout"))
    around = (*around, answer.get("denial_cache", False))
    if answer["kind"] == "one":
        return "one", around, [lua_address(answer["address"])]
    if answer["kind"] == "cluster":
        return "cluster", around, [lua_address(seed) for seed in answer["seeds"]]
    master = answer["master"]
    login = tuple(word for word in (master.get("user"), master.get("password")) if word is not None)
    watchers = [lua_address(watcher) for watcher in answer["sentinels"]]
    return "sentinel", around, watchers, answer["name"], login, master["db"]


WORDS = st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=12)
LOGINS = st.one_of(
    st.just(""),
    WORDS.map(lambda word: f":{quote(word, safe='')}@"),
    st.tuples(WORDS, WORDS).map(lambda pair: f"{quote(pair[0], safe='')}:{quote(pair[1], safe='')}@"),
)
HOSTS = st.sampled_from(["h", "h:1234", "[::1]:7", "127.0.0.1", "redis-1.example.com:65535", "localhost"])
AROUND = st.lists(
    st.sampled_from(
        [
            *("deadline=50ms", "deadline=.5s", "deadline=2s", "deadline=1.1ms", "fallback=local", "fallback=deny"),
            *("nodes=4", "denial_cache=on", "denial_cache=no"),
        ]
    ),
    max_size=3,
    unique_by=lambda option: option.partition("=")[0],
).map("&".join)
SCHEMES = st.sampled_from(["redis", "valkey", "rediss", "valkeys"])


@given(SCHEMES, LOGINS, HOSTS, st.sampled_from(["", "/", "/0", "/5", "/15"]), AROUND)
def test_one_server(gate: RedisDriverNginx, scheme: str, login: str, host: str, db: str, around: str) -> None:
    url = f"{scheme}://{login}{host}{db}?{around}"
    assert lua(gate, url) == python(url)


@given(LOGINS, st.sampled_from(["/a/socket", "/a%20b", "/r.sock?db=3", "/r.sock?deadline=20ms&db=1"]))
def test_a_socket(gate: RedisDriverNginx, login: str, path: str) -> None:
    assert lua(gate, f"unix://{login}{path}") == python(f"unix://{login}{path}")
    assert lua(gate, f"redis+unix://{login}{path}") == python(f"redis+unix://{login}{path}")


@given(SCHEMES, LOGINS, st.lists(HOSTS, min_size=1, max_size=3), AROUND)
def test_a_cluster(gate: RedisDriverNginx, scheme: str, login: str, hosts: list[str], around: str) -> None:
    url = f"{scheme}+cluster://{login}{','.join(hosts)}?{around}"
    assert lua(gate, url) == python(url)


@given(LOGINS, st.lists(HOSTS, min_size=1, max_size=3), WORDS, st.sampled_from(["", "/0", "/3"]), LOGINS)
def test_sentinels(gate: RedisDriverNginx, login: str, hosts: list[str], name: str, db: str, auth: str) -> None:
    user, _, password = auth.rstrip("@").partition(":")
    words = [f"sentinel_username={user}"] if user else []
    words += [f"sentinel_password={password}"] if password else []
    url = f"redis+sentinel://{login}{','.join(hosts)}/{quote(name, safe='')}{db}?{'&'.join(words)}"
    assert lua(gate, url) == python(url)


# Python finds these out when it opens the files, or asks OpenSSL; nginx has the settings elsewhere.
@pytest.mark.parametrize("url", BAD)
def test_a_url_that_cannot_be_read_gets_a_sentence_without_the_password(gate: RedisDriverNginx, url: str) -> None:
    if "ssl_certfile" in url:
        return
    with pytest.raises(NginxRedisError, match=r"[Ww]rite ") as refused:
        gate.call_driver("url", url=url)
    assert "hunter2" not in str(refused.value)


LENGTHS = [
    *("50ms", "s", "2s", "0.05s", ".5s", "1.1ms", "2.3ms", "7us", "1.5minutes", "2+min", "%202s%20", "1H"),
    *("3hrs", "1day", "1w", "month", "366d", "50S", "5Milliseconds", "us"),
    *("50", "0.05", "0", "", ".5", "5.", "5.s", "0s", "0ms", "0.5us", "1.0004ms", "367d", "1y", "2years"),
    *(
        "-5s",
        "5x",
        "5ss",
        "s5",
        "1e3s",
        "0.0ms",
        "0 s",
        "00",
        "0x",
        ".0s",
        "on",
        "yes",
        "5s5s",
        "1_000ms",
        "1,5s",
        "%C2%B5s",
        "%D9%A5s",
        "ms50",
        "soon",
    ),
    "9" * 400 + "s",
]


@pytest.mark.parametrize("length", LENGTHS)
def test_lengths_of_time(gate: RedisDriverNginx, length: str) -> None:
    compare(gate, f"redis://h?deadline={length}", unless=" Did you mean")


# Read and refused alike; and refused by the same sentence, but for what comes behind these words.
URLS = {
    "redis://h?fail_open=true": "",
    "redis://h?fail_closed=true": "",
    "redis://h?cache=on": "",
    "redis://h?memo=on": "",
    "redis://h?timeout=50ms": "",
    "redis://h?socket_timeout=1": "",
    "redis://h?socket_connect_timeout=1": "",
    "redis://h?password=hunter2": "",
    "redis://h?username=me&password=hunter2": "",
    "redis://h?ssl=true": "",
    "redis://h?lease=100ms": " Write",
    "redis://h?lease_units=500": " Write",
    "redis://h?prefetch=100ms": "",
    "redis://h?prefetch_units=500": "",
    "redis://h?prefetch=100ms&prefetch_units=500": "",
    "redis://h?dedline=1s": "",
    "redis://h?falback=local": "",
    "redis+sentinel://h/m?sentinel_pasword=x": "",
    "redis://h?max_connections=10": "Known:",
    "redis://h?DEADLINE=1s": "",
    "redis://h?=1s": "Known:",
    "redis://h?deadline=1s&deadline=1s": "",
    "redis://h?denial_cache=off&fallback=deny&denial_cache=off": "",
    "redis://h?db=1&db=1": "",
    "redis://h?deadline": "",
    "redis://h?deadline=1s&": "",
    "redis://h?&&": "",
    "redis://h?": "",
    "redis://h?denial_cache=on": "",
    "redis://h?denial_cache=OFF": "",
    "redis://h?denial_cache=1": "",
    "redis://h?denial_cache=": "",
    "redis://h?denial_cache=perhaps": "",
    "redis://h?fallback=maybe": "",
    "redis://h?fallback=LOCAL": "",
    "redis://h?nodes=0": "",
    "redis://h?nodes=4.5": "",
    "redis://h?nodes=-1": "",
    "redis://h?nodes=1000000": "",
    "redis://h?nodes=1000001": "",
    "redis://h?nodes=99999999999999999999": "",
    "redis://h?nodes=%D9%A5": "",
    "redis://h?db=3": "",
    "redis://h/2?db=3": "",
    "redis://h?db=x": "",
    "redis://h?db=": "",
    "redis://h?sentinel_password=x": "",
    "redis+cluster://h?sentinel_username=x": "",
    "redis+cluster://h?db=0": "",
    "redis+cluster://h?db=2": "",
    "redis+cluster://h:1/2": "",
    "redis+sentinel://h/m/2": "",
    "redis+sentinel://h/m?db=2": "",
    "redis+sentinel://h/m?sentinel_password=x": "",
    "redis+sentinel://h/m?sentinel_username=x": "",
    "redis+sentinel://h/m?sentinel_username=x&sentinel_password=": "",
    "redis+sentinel://h:1": "",
    "redis://h?ssl_cert_reqs=none": "",
    "redis://h?ssl_ca_certs=/a": "",
    "redis+cluster://h?ssl_certfile=/a&ssl_keyfile=/b": "",
    "unix:///s?ssl_cert_reqs=none": "",
    "rediss://h?ssl_cert_reqs=none": "",
    "rediss://h?ssl_cert_reqs=optional": "",
    "rediss://h?ssl_check_hostname=off": "",
    "rediss://h?ssl_check_hostname=perhaps": "",
    "rediss://h?ssl_certfile=/a": "",
    "rediss+sentinel://h/m?ssl_keyfile=/a": "",
    "rediss://h?ssl_include_verify_flags=x": "Known:",
    "unix:///r.sock?db=3": "",
    "unix://h/a/socket": "",
    "unix://": "",
    "redis://h#fragment": "",
    "unix:///a#b": "",
    "redis://h?deadline=1s#b": "",
    "redis://me:99?hunter2@h/0": "",
    "redis://me:99?a=hunter2@h/0": "",
    "redis://me:99?deadline=hunter2@h/0": "",
    "redis://me:99?hunter2&x@h": "",
    "redis://h?sentinel_password=hunter2@x": "",
    **{url: "" for url, _ in PARTS},
    "redis://h:00006379": "",
    "redis://h:": "",
    "redis://:1": "",
    "redis://,": "",
    "redis+cluster://h/0": "",
    "redis+cluster://h//": "",
    "redis+cluster://h/0/1": "",
    "redis+cluster://h:1/a@b": "",
    "redis://h/a@b": "",
    "redis+sentinel://h,h2:0/m": "",
    "redis+sentinel://h/m/0/1": "",
    "redis://me:hunter2@h1,h2#hunter2@": "",
    "localhost:6379": ", or memory",
    "cache.example.com:6379/2": ", or memory",
    "me:hunter2@localhost:6379": ", or memory",
    "me:hunter2@localhost:6379?password=hunter2": ", or memory",
    "me:hunter2@redis://h": ", or memory",
    "redis": ", or memory",
    "": ", or memory",
    "/var/run/redis.sock": ", or memory",
    "http://me:hunter2@h": ", or memory",
    "unix+cluster://h": ", or memory",
    "REDIS://h": ", or memory",
}


def verdict(read: Callable[[str], Any], url: str) -> Any:
    try:
        return read(url)
    except (InvalidRule, NginxRedisError) as refused:
        return str(refused)


def compare(gate: RedisDriverNginx, url: str, unless: str = "") -> None:
    """Both read the same, or refuse by the same sentence; `unless` begins what may differ."""
    ours, nginx = verdict(python, url), verdict(lambda one: lua(gate, one), url)
    for words in (ours, nginx):
        assert "hunter2" not in str(words) or not isinstance(words, str)
    assert isinstance(ours, str) == isinstance(nginx, str), (ours, nginx)
    if isinstance(ours, str) and unless:
        ours, nginx = ours.partition(unless)[0].rstrip(" ."), nginx.partition(unless)[0]
        nginx = nginx.partition(" Known:")[0].rstrip(" .")
    assert ours == nginx


@pytest.mark.parametrize("url", URLS)
def test_both_say_the_same(gate: RedisDriverNginx, url: str) -> None:
    compare(gate, url, URLS[url])


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("memory://", 'engine = "shared"'),
        ("redis://h?lease=50ms", "Write prefetch: 100ms into the rule, or into defaults."),
        (
            "redis://h?max_connections=9",
            'has "max_connections", which is no option. Known: deadline, fallback, denial_cache, nodes, db.',
        ),
        ("rediss://h?ssl_ca_certs=/a", "lua_ssl_trusted_certificate"),
        ("rediss://h?ssl_password=hunter2", "name a key file that has no password"),
    ],
)
def test_url_options_that_nginx_sets_elsewhere_are_refused(
    gate: RedisDriverNginx, url: str, sentence: str
) -> None:
    with pytest.raises(NginxRedisError) as refused:
        gate.call_driver("url", url=url)
    assert sentence in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_every_server_and_login_has_its_pool(gate: RedisDriverNginx) -> None:
    urls = ["redis://h/0", "redis://h/1", "redis://:a@h/0", "redis://:b@h/0", "redis://u:a@h/0", "rediss://h/0"]
    urls += ["rediss://h/0?ssl_cert_reqs=none", "redis://h:1/0", "unix:///h", "redis://v:a@h/0"]
    urls += ["rediss://h?ssl_check_hostname=false", "rediss://h?ssl_certfile=/a&ssl_keyfile=/b"]
    pools = {gate.call_driver("url", url=url)["address"]["options"]["pool"] for url in urls}
    assert len(pools) == len(urls)
    assert gate.call_driver("url", url="redis://u:hunter2@h")["address"]["options"]["pool"].count("hunter2") == 0
