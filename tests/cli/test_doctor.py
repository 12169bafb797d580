"""headgate doctor: what it finds on real servers, and that the line it names mends it."""

import shlex
import time
from pathlib import Path

import pytest

from headgate import Limiter
from headgate.operations.finding import ERROR, OK, WARNING
from tests.cli.conftest import Prompt
from tests.cli.doctor_harness import BOOK, Found, examined
from tests.errors.test_acl_rights import IN_A_CLUSTER, LEAST
from tests.servers import Cluster, RedisServer
from tests.servers.wait_until import until


def run_on(server: RedisServer, finding: Found) -> None:
    """Does what the finding says."""
    server.call(*shlex.split(finding["change"]))


def test_a_healthy_server(prompt: Prompt, server: RedisServer) -> None:
    with Limiter("5/hour", server.url) as limiter:
        limiter.take("ann")
    keys = server.call("KEYS", "*")
    findings = examined(prompt, "--engine", server.url)
    assert {*findings} == {
        "version",
        "cluster mode",
        "rights",
        "scripts",
        "eviction",
        "clock",
        "latency",
        "counts",
    }
    assert all(each["level"] == OK for check, each in findings.items() if check != "latency")
    assert findings["version"]["message"].startswith(server.kind.capitalize())
    assert server.call("KEYS", "*") == keys
    with Limiter("5/hour", server.url) as limiter:
        assert limiter.peek("ann").remaining == 4


def test_for_people(prompt: Prompt, server: RedisServer) -> None:
    server.call("ACL", "SETUSER", "clerk", "reset", "on", ">secret", *LEAST.split(), "-evalsha", "-zadd")
    url = f"redis://clerk:secret@127.0.0.1:{server.port}/0"
    try:
        assert prompt("doctor", "--engine", url) == 3
    finally:
        server.call("ACL", "DELUSER", "clerk")
    lines = prompt.out.splitlines()
    at = lines.index('error   rights          The user "clerk" may not run evalsha, zadd.')
    assert lines[at + 1] == f"        -> 127.0.0.1:{server.port}: ACL SETUSER clerk +evalsha +zadd"
    assert lines[-1].startswith("1 error, ")
    assert "secret" not in prompt.out


def test_an_eviction_policy_that_deletes_rulebooks(prompt: Prompt) -> None:
    with RedisServer(config=["maxmemory 100mb", "maxmemory-policy allkeys-lru"]) as server:
        eviction = examined(prompt, "--engine", server.url, code=3)["eviction"]
        assert (eviction["level"], eviction["where"]) == (ERROR, f"127.0.0.1:{server.port}")
        assert "allkeys-lru" in eviction["message"]
        run_on(server, eviction)
        assert examined(prompt, "--engine", server.url)["eviction"]["level"] == OK


def test_an_eviction_policy_that_deletes_counts(prompt: Prompt) -> None:
    with RedisServer(config=["maxmemory 100mb", "maxmemory-policy volatile-ttl"]) as server:
        eviction = examined(prompt, "--engine", server.url)["eviction"]
        assert eviction["level"] == WARNING
        assert "a count that was deleted begins anew" in eviction["message"]
        assert prompt("doctor", "--engine", server.url, "--strict") == 3
        server.call("CONFIG", "SET", "maxmemory", 0)
        eviction = examined(prompt, "--engine", server.url)["eviction"]
        assert (eviction["level"], eviction["change"]) == (OK, None)


def test_a_server_that_is_nearly_full(prompt: Prompt) -> None:
    with RedisServer() as server:
        used = int(server.info("memory")["used_memory"])
        server.call("SET", "ballast", "x" * used * 20)
        server.call("CONFIG", "SET", "maxmemory", int(int(server.info("memory")["used_memory"]) * 1.06))
        memory = examined(prompt, "--engine", server.url)["memory"]
        assert memory["level"] == WARNING
        run_on(server, memory)
        assert "memory" not in examined(prompt, "--engine", server.url)


def test_a_server_that_is_full(prompt: Prompt) -> None:
    with RedisServer(config=["maxmemory 100kb"]) as server:
        memory = examined(prompt, "--engine", server.url, code=3)["memory"]
        assert memory["level"] == ERROR
        assert memory["message"].endswith("% of maxmemory are used: the server refuses every decision.")
        run_on(server, memory)
        assert "memory" not in examined(prompt, "--engine", server.url)


def test_a_server_that_takes_no_writes(prompt: Prompt) -> None:
    with RedisServer(config=["min-replicas-to-write 1"]) as server:
        refusal = examined(prompt, "--engine", server.url, code=3)["refusal"]
        assert (refusal["level"], refusal["where"]) == (ERROR, f"127.0.0.1:{server.port}")
        assert refusal["message"].startswith("The server decides nothing: it has too few replicas (NOREPLICAS ")
        run_on(server, refusal)
        assert "refusal" not in examined(prompt, "--engine", server.url)


def test_a_server_that_cannot_save_to_its_disk(prompt: Prompt, tmp_path: Path) -> None:
    with RedisServer(args=["--save", "3600 100000", "--dir", str(tmp_path)]) as server:
        (tmp_path / "dump.rdb").mkdir()
        server.call("BGSAVE")
        until(lambda: None if server.info("persistence")["rdb_last_bgsave_status"] == "err" else "saving", 60)
        refusal = examined(prompt, "--engine", server.url, code=3)["refusal"]
        assert "it cannot save to its disk; its log says why (MISCONF " in refusal["message"]
        run_on(server, refusal)
        assert "refusal" not in examined(prompt, "--engine", server.url)


def test_a_database_that_is_not_there(prompt: Prompt, server: RedisServer) -> None:
    url = f"redis://127.0.0.1:{server.port}/999"
    database = examined(prompt, "--engine", url, code=3)["database"]
    assert database["message"] == "The server has no database 999: ERR DB index is out of range."
    assert database["change"] == f"redis://127.0.0.1:{server.port}/0"


def test_a_deadline_that_no_round_trip_keeps(prompt: Prompt, server: RedisServer) -> None:
    latency = examined(prompt, "--engine", f"redis://127.0.0.1:{server.port}/0?deadline=1us", code=3)["latency"]
    assert latency["level"] == ERROR
    assert "too slow for the deadline of 0.001 ms" in latency["message"]


@pytest.mark.parametrize("command", [word[1:] for word in LEAST.split() if word.startswith("+")])
def test_a_right_that_is_missing(prompt: Prompt, server: RedisServer, command: str) -> None:
    rights = [word for word in LEAST.split() if word != f"+{command}"]
    server.call("ACL", "SETUSER", "clerk", "reset", "on", ">secret", *rights)
    url = f"redis://clerk:secret@127.0.0.1:{server.port}/0"
    try:
        finding = examined(prompt, "--engine", url, code=3)["rights"]
        assert finding["change"] == f"ACL SETUSER clerk +{command}"
        run_on(server, finding)
        findings = examined(prompt, "--engine", url)
        assert findings["rights"]["level"] == OK
        assert findings["eviction"]["change"] == "ACL SETUSER clerk +info"
    finally:
        server.call("ACL", "DELUSER", "clerk")


def test_keys_and_a_database_that_may_not_be_used(prompt: Prompt, server: RedisServer) -> None:
    commands = [word for word in LEAST.split() if word.startswith("+")]
    server.call("ACL", "SETUSER", "clerk", "reset", "on", ">secret", "~other:*", *commands)
    url = f"redis://clerk:secret@127.0.0.1:{server.port}/3"
    try:
        finding = examined(prompt, "--engine", url, "--prefix", "mine", code=3)["rights"]
        assert finding["change"] == "ACL SETUSER clerk +select ~mine2:*"
        counts = examined(prompt, "--engine", url.replace("/3", "/0"), "--prefix", "mine", code=3)["counts"]
        assert counts["change"] == "ACL SETUSER clerk ~mine2:*"
        run_on(server, finding)
        assert examined(prompt, "--engine", url, "--prefix", "mine")["rights"]["level"] == OK
    finally:
        server.call("ACL", "DELUSER", "clerk")


def test_a_login_that_is_refused(prompt: Prompt, server: RedisServer) -> None:
    finding = examined(prompt, "--engine", f"redis://ann:hunter2@127.0.0.1:{server.port}/0", code=1)["server"]
    assert finding["change"] == "redis://USER:PASSWORD@HOST:PORT/DB"
    assert "hunter2" not in finding["message"]


def test_a_server_that_is_down(prompt: Prompt, tmp_path: Path) -> None:
    book = tmp_path / "rules.yaml"
    book.write_text(BOOK)
    with RedisServer() as server:
        url = server.url
    findings = examined(prompt, "--engine", url, "--rules", str(book), code=1)
    assert findings["server"]["level"] == ERROR
    assert "Connection refused" in findings["server"]["message"]
    assert findings["rulebook"]["level"] == OK


def test_a_cluster_under_the_url_of_a_single_server(prompt: Prompt, cluster: Cluster) -> None:
    node = cluster.masters()[0]
    finding = examined(prompt, "--engine", node.url, code=3)["cluster mode"]
    assert (finding["level"], finding["where"]) == (ERROR, "the engine's URL")
    document = prompt.json("doctor", "--engine", finding["change"])
    modes = [each for each in document["findings"] if each["check"] == "cluster mode"]
    assert [each["level"] for each in modes] == [OK] * 3
    assert {each["where"] for each in modes} == {f"127.0.0.1:{master.port}" for master in cluster.masters()}
    assert [each["level"] for each in document["findings"] if each["check"] == "cluster clocks"] == [OK]


def test_rights_in_a_cluster(prompt: Prompt, cluster: Cluster) -> None:
    url = cluster.url.replace("://", "://clerk:secret@")
    for node in cluster.nodes:
        node.call("ACL", "SETUSER", "clerk", "reset", "on", ">secret", *LEAST.split())
    try:
        finding = examined(prompt, "--engine", url, code=1)["server"]
        assert finding["change"] == "ACL SETUSER clerk +cluster|slots"
        for node in cluster.nodes:
            node.call("ACL", "SETUSER", "clerk", *IN_A_CLUSTER.split())
        assert examined(prompt, "--engine", url)["rights"]["level"] == OK
    finally:
        for node in cluster.nodes:
            node.call("ACL", "DELUSER", "clerk")


def test_a_single_server_under_the_url_of_a_cluster(prompt: Prompt, server: RedisServer) -> None:
    finding = examined(prompt, "--engine", f"redis+cluster://127.0.0.1:{server.port}", code=1)["server"]
    assert finding["change"] == f"redis://127.0.0.1:{server.port}"


def test_a_replica(prompt: Prompt, redis_server: RedisServer) -> None:
    with RedisServer() as replica:
        replica.call("REPLICAOF", "127.0.0.1", redis_server.port)
        role = examined(prompt, "--engine", replica.url, code=3)["role"]
    assert role["change"] == f"redis://127.0.0.1:{redis_server.port}/0"
    assert "role" not in examined(prompt, "--engine", role["change"])


def test_a_clock_that_is_wrong(prompt: Prompt, driven_server: RedisServer) -> None:
    driven_server.clock.set_us(time.time_ns() // 1000 + 3600 * 10**6)
    clock = examined(prompt, "--engine", driven_server.url)["clock"]
    assert clock["level"] == WARNING
    assert "ahead of" in clock["message"]
    driven_server.clock.set_us(time.time_ns() // 1000 - 3600 * 10**6)
    assert "behind" in examined(prompt, "--engine", driven_server.url)["clock"]["message"]


def test_memory_counts_for_one_process(prompt: Prompt) -> None:
    engine = examined(prompt, "--engine", "memory://")["engine"]
    assert (engine["level"], engine["change"]) == (WARNING, "redis://localhost:6379/0")


def test_the_pushed_rulebook(prompt: Prompt, tmp_path: Path, redis_server: RedisServer) -> None:
    book = tmp_path / "rules.yaml"
    book.write_text(BOOK)
    assert prompt("rules", "push", str(book), "--author", "ann", "--engine", redis_server.url) == 0
    findings = examined(prompt, "--engine", redis_server.url)
    assert findings["rulebook"]["where"] == "the pushed rulebook"
