"""A URL says in nginx what it says in Python; and what cannot be read gets a sentence without the login."""

from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.engine import options
from headgate.engine.redis.address import Address
from headgate.engine.redis.topology import Cluster, One, Sentinels, topology
from tests.engine.test_topology import BAD
from tests.nginx.redis.room import Gate, Trouble


def python_address(address: Address) -> dict[str, Any]:
    login = address.login
    said: dict[str, Any] = {"db": address.db, "text": address.text, "tls": address.tls is not None}
    said["user"], said["password"] = (login[0] if len(login) == 2 else None), login[-1] if login else None
    said["greeting"] = b"".join(address.greeting).decode() or None
    return said


def lua_address(address: dict[str, Any]) -> dict[str, Any]:
    said = {name: address.get(name) for name in ("db", "text", "user", "password", "greeting")}
    return {**said, "tls": "tls" in address}


def python(url: str) -> Any:
    plain, chosen = options.split(url)
    around = (chosen.deadline, chosen.fallback, chosen.nodes, chosen.patience)
    match topology(plain):
        case One() as one:
            only = one.node(b"")
            assert only is not None
            return "one", around, [python_address(only)]
        case Cluster() as cluster:
            return "cluster", around, [python_address(seed) for seed in cluster._seeds]
        case Sentinels() as found:
            watchers = [python_address(watcher) for watcher in found._watchers]
            template = found._template
            return "sentinel", around, watchers, found._name, template.login, template.db


def lua(gate: Gate, url: str) -> Any:
    found = gate.ask("url", url=url)
    around = tuple(found.get(name) for name in ("deadline", "fallback", "nodes", "patience"))
    if found["kind"] == "one":
        return "one", around, [lua_address(found["address"])]
    if found["kind"] == "cluster":
        return "cluster", around, [lua_address(seed) for seed in found["seeds"]]
    master = found["master"]
    login = tuple(word for word in (master.get("user"), master.get("password")) if word is not None)
    watchers = [lua_address(watcher) for watcher in found["watchers"]]
    return "sentinel", around, watchers, found["name"], login, master["db"]


WORDS = st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "S")), min_size=1, max_size=12)
LOGINS = st.one_of(
    st.just(""),
    WORDS.map(lambda word: f":{quote(word, safe='')}@"),
    st.tuples(WORDS, WORDS).map(lambda pair: f"{quote(pair[0], safe='')}:{quote(pair[1], safe='')}@"),
)
HOSTS = st.sampled_from(["h", "h:1234", "[::1]:7", "127.0.0.1", "redis-1.example.com:65535", "localhost"])
AROUND = st.lists(
    st.sampled_from(["deadline=50ms", "deadline=.5", "deadline=2s", "fallback=local", "fallback=deny", "nodes=4"]),
    max_size=3,
    unique_by=lambda option: option.partition("=")[0],
).map("&".join)
SCHEMES = st.sampled_from(["redis", "valkey", "rediss", "valkeys"])


@given(SCHEMES, LOGINS, HOSTS, st.sampled_from(["", "/", "/0", "/5", "/15"]), AROUND)
def test_one_server(gate: Gate, scheme: str, login: str, host: str, db: str, around: str) -> None:
    url = f"{scheme}://{login}{host}{db}?{around}"
    assert lua(gate, url) == python(url)


@given(LOGINS, st.sampled_from(["/a/socket", "/a%20b", "/r.sock?db=3", "/r.sock?deadline=20ms&db=1"]))
def test_a_socket(gate: Gate, login: str, path: str) -> None:
    assert lua(gate, f"unix://{login}{path}") == python(f"unix://{login}{path}")
    assert lua(gate, f"redis+unix://{login}{path}") == python(f"redis+unix://{login}{path}")


@given(SCHEMES, LOGINS, st.lists(HOSTS, min_size=1, max_size=3), AROUND)
def test_a_cluster(gate: Gate, scheme: str, login: str, hosts: list[str], around: str) -> None:
    url = f"{scheme}+cluster://{login}{','.join(hosts)}?{around}"
    assert lua(gate, url) == python(url)


@given(LOGINS, st.lists(HOSTS, min_size=1, max_size=3), WORDS, st.sampled_from(["", "/0", "/3"]), LOGINS)
def test_sentinels(gate: Gate, login: str, hosts: list[str], name: str, db: str, own: str) -> None:
    user, _, password = own.rstrip("@").partition(":")
    words = [f"sentinel_username={user}"] if user else []
    words += [f"sentinel_password={password}"] if password else []
    url = f"redis+sentinel://{login}{','.join(hosts)}/{quote(name, safe='')}{db}?{'&'.join(words)}"
    assert lua(gate, url) == python(url)


# Python finds these out when it opens the files, or asks OpenSSL; nginx has the settings elsewhere.
@pytest.mark.parametrize("url", BAD)
def test_a_url_that_cannot_be_read_gets_a_sentence_without_the_password(gate: Gate, url: str) -> None:
    if "ssl_certfile" in url:
        return
    with pytest.raises(Trouble, match=r"[Ww]rite ") as refused:
        gate.ask("url", url=url)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("redis", "What was given is not an engine"),
        ("memory://", 'engine = "shared"'),
        ("http://h", "http://… is not an engine"),
        ("unix+cluster://h", "is not an engine"),
        ("redis://h?memo=on", "memo = true or false into init"),
        ("redis://h?lease=50ms", "write a lease into the rule"),
        ("rediss://h?ssl_ca_certs=/a", "lua_ssl_trusted_certificate"),
        ("redis://h?ssl_cert_reqs=none", "belongs to rediss://"),
        ("rediss://h?ssl_certfile=/a", "A certificate needs its key"),
        ("redis://h?dedline=1s", 'has "dedline", which is no option. Known: deadline'),
        ("redis://h?deadline=0", "deadline is a length of time"),
        ("redis://h?deadline=5h", "deadline is a length of time"),
        ("redis://h?nodes=0", "nodes is a whole number"),
        ("redis://h?fallback=maybe", "fallback is allow, deny or local"),
        ("redis://h?sentinel_password=x", "is no option"),
        ("unix://h/a/socket", "cannot be read"),
        ("redis+cluster://h:1/2", "no database but 0"),
        ("redis+sentinel://h:1", "Which master"),
    ],
)
def test_sentences(gate: Gate, url: str, sentence: str) -> None:
    with pytest.raises(Trouble) as refused:
        gate.ask("url", url=url)
    assert sentence in str(refused.value)


def test_pools_are_told_apart(gate: Gate) -> None:
    urls = ["redis://h/0", "redis://h/1", "redis://:a@h/0", "redis://:b@h/0", "redis://u:a@h/0", "rediss://h/0"]
    urls += ["rediss://h/0?ssl_cert_reqs=none", "redis://h:1/0", "unix:///h", "redis://v:a@h/0"]
    urls += ["rediss://h?ssl_check_hostname=false", "rediss://h?ssl_certfile=/a&ssl_keyfile=/b"]
    pools = {gate.ask("url", url=url)["address"]["options"]["pool"] for url in urls}
    assert len(pools) == len(urls)
    assert gate.ask("url", url="redis://u:hunter2@h")["address"]["options"]["pool"].count("hunter2") == 0
