"""headgate rules push, pull, history, rollback: from a file to the servers and back."""

import json
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate import Limiter
from headgate.engines.redis.published_scripts import store_texts
from headgate.gateway.bundle import compile_bundle, script_texts
from headgate.rules import load
from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write
from tests.engines.redis.version_harness import close_all, engines, open_versions
from tests.servers import Cluster, RedisServer
from tests.servers.server_programs import command
from tests.servers.wait_until import until

ONE = "# the first\nrules:\n  - {name: a, limit: 10/hour, overrides: true}\n"
TWO = "rules:\n  - {name: a, limit: 20/hour, overrides: true}\n"


@pytest.fixture
def where(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setenv("USER", "ann")
    return ("--engine", server.url)


def push(prompt: Prompt, write: Write, text: str, *words: str) -> int:
    return prompt("rules", "push", write(text), *words)


def test_what_is_pushed_is_pulled_as_it_was_written(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    assert push(prompt, write, ONE, *where, "--note", "hello") == 0
    assert prompt.out.splitlines()[0] == "+ a: added"
    assert prompt.out.splitlines()[-1] == "Version 1 is in force: 1 rule."
    assert prompt("rules", "pull", *where) == 0
    assert prompt.out == ONE
    document = prompt.json("rules", "pull", *where)
    assert (document["version"], document["author"], document["note"], document["text"]) == (
        1,
        "ann",
        "hello",
        ONE,
    )
    assert document["format"] == "yaml"


def test_a_push_shows_what_it_changes(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    push(prompt, write, ONE, *where)
    assert push(prompt, write, TWO, *where, "--author", "bob") == 0
    assert prompt.out.splitlines() == [
        "~ a: changed",
        "    limit: 10/hour -> 20/hour",
        "Version 2 is in force: 1 rule.",
    ]
    assert prompt("rules", "diff", "pushed", "rules.yaml", *where, "--exit-code") == 0


def test_the_same_text_is_not_pushed_again(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    push(prompt, write, ONE, *where)
    document = prompt.json("rules", "push", "rules.yaml", *where)
    assert (document["pushed"], document["version"]) == (False, 1)


def test_only_if_that_version_is_in_force(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    assert push(prompt, write, ONE, *where, "--if-version", "0") == 0
    assert push(prompt, write, TWO, *where, "--if-version", "1") == 0
    assert "somebody else published in between" in prompt.failure(
        "rules", "push", write(ONE), *where, "--if-version", "1"
    )


def test_what_is_no_rulebook_is_not_pushed(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    assert push(prompt, write, "rules: [{name: a, limit: 10/minit}]", *where) == 2
    assert "10/minute" in prompt.err
    assert prompt.json("rules", "history", *where) == {"in_force": None, "versions": []}


def author_without_a_user(server: RedisServer, book: str, *words: str) -> str:
    """Pushes without a user in the environment, and returns the author that the history shows."""
    bare = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH")}
    push = [*words, sys.executable, "-m", "headgate.cli", "rules", "push", book, "--engine", server.url]
    done = subprocess.run(push, env=bare, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    version = open_versions(server.url).current()
    close_all()
    assert version is not None
    return version.author


def test_without_a_user_in_the_environment_the_account_answers_for_it(
    server: RedisServer, write: Write, tmp_path: Path
) -> None:
    account = pwd.getpwuid(os.getuid()).pw_name
    assert author_without_a_user(server, str(tmp_path / write(ONE))) == f"{account}@{socket.gethostname()}"


def test_an_account_without_a_name_is_a_number(server: RedisServer, write: Write, tmp_path: Path) -> None:
    nobody = 54_321
    with pytest.raises(KeyError):
        pwd.getpwuid(nobody)
    # Root keeps its right to read what the interpreter is made of; others need a namespace to be somebody else.
    setpriv = (str(command("setpriv", "util-linux")), "--ruid", str(nobody), "--")
    unshare = (str(command("unshare", "util-linux")), "--user", f"--map-user={nobody}", "--")
    as_nobody = setpriv if os.getuid() == 0 else unshare
    author = author_without_a_user(server, str(tmp_path / write(ONE)), *as_nobody)
    assert author == f"uid{nobody}@{socket.gethostname()}"


def test_history_and_rollback(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    push(prompt, write, ONE, *where, "--note", "first")
    push(prompt, write, TWO, *where, "--note", "second")
    assert prompt("rules", "rollback", *where, "--note", "too much") == 0
    assert prompt.out.splitlines() == [
        "~ a: changed",
        "    limit: 20/hour -> 10/hour",
        "Version 3 is in force: the text of version 1.",
    ]
    assert prompt("rules", "history", *where) == 0
    titles, *rows = prompt.out.splitlines()
    assert titles.split() == ["version", "published", "author", "note"]
    assert [row.split()[0] for row in rows] == ["3", "2", "1"]
    assert rows[0].split()[1:3] == ["in", "force"]
    assert rows[0].endswith("ann     back to 1; too much")
    document = prompt.json("rules", "history", *where)
    assert (document["in_force"], [each["rolled_back_to"] for each in document["versions"]]) == (
        3,
        [1, None, None],
    )
    assert prompt("rules", "pull", "--version", "2", *where) == 0
    assert prompt.out == TWO
    assert "No version 7 is kept. See headgate rules history." in prompt.failure(
        "rules", "pull", "--version", "7", *where
    )
    assert prompt.json("rules", "rollback", "--to", "2", *where)["version"] == 4


def test_missing_versions_are_reported(prompt: Prompt, where: tuple[str, ...]) -> None:
    push = "No rulebook was pushed to this engine yet. Push one: headgate rules push FILE --engine URL."
    assert push in prompt.failure("rules", "pull", *where)
    assert push in prompt.failure("rules", "pull", "--version", "7", *where)
    assert "nothing to roll back" in prompt.failure("rules", "rollback", *where)
    assert "No rulebook was pushed" in prompt.failure("rules", "diff", "pushed", "pushed", *where)
    assert prompt("rules", "history", *where) == 0
    assert prompt.out == "No rulebook was pushed to this engine yet.\n"


def test_other_commands_go_by_what_was_pushed(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    push(prompt, write, ONE, *where)
    assert prompt.json("take", "all", "--rule", "a", *where)["remaining"] == 9
    assert prompt.json("keys", *where)["keys"][0]["of"] == 10
    assert 'no rule "b" in version 1' in prompt.failure("take", "all", "--rule", "b", *where)
    assert prompt("overrides", "set", "a", "all", "50/hour", *where) == 0
    assert prompt.err == ""
    assert prompt.json("peek", "all", "--rule", "a", *where)["limits"][0]["limit"] == "50/hour"


def test_without_a_rulebook_a_rule_cannot_be_found(prompt: Prompt, where: tuple[str, ...]) -> None:
    assert "Give one with --rules FILE" in prompt.failure("take", "all", "--rule", "a", *where)


def test_toml_and_json_are_pushed_as_they_are(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    write('[[rules]]\nname = "a"  # kept\nlimit = "10/hour"\n', "rules.toml")
    assert prompt("rules", "push", "rules.toml", *where) == 0
    assert prompt("rules", "pull", *where) == 0
    assert "# kept" in prompt.out
    write(json.dumps({"rules": [{"name": "a", "limit": "10/hour"}]}), "rules.json")
    assert prompt.json("rules", "push", "rules.json", *where)["same"]


def test_in_a_cluster_it_is_no_different(
    prompt: Prompt, write: Write, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push(prompt, write, ONE, "--engine", cluster.url, "--author", "ann") == 0
    assert prompt("rules", "pull", "--engine", cluster.url) == 0
    assert prompt.out == ONE


def document_of(server: RedisServer, version: int, prefix: str = "hg") -> dict[str, Any]:
    """The document of a version, as a gateway reads it."""
    paper = server.call("HGET", f"{prefix}2:rules", str(version))
    assert isinstance(paper, bytes)
    document: dict[str, Any] = json.loads(json.loads(paper)["document"])
    return document


def test_gateways_find_the_bundle_its_scripts_and_their_texts(
    prompt: Prompt, write: Write, where: tuple[str, ...], server: RedisServer
) -> None:
    server.call("SCRIPT", "FLUSH")
    assert push(prompt, write, ONE, *where, "--prefix", "shop") == 0
    stored = document_of(server, 1, "shop")
    assert stored["rules"] == [{"name": "a", "limit": "10/hour", "overrides": True}]
    assert stored["limits"]["10/hour"]["numbers"][:3] == ["1", "360000000", "10"]
    for sha in stored["scripts"].values():
        assert server.call("SCRIPT", "EXISTS", sha) == [1]
        text = server.call("HGET", "shop2:scripts", sha)
        assert isinstance(text, bytes)
        assert server.call("SCRIPT", "LOAD", text) == sha.encode()
    assert server.call("EXISTS", "hg2:scripts") == 0


def replica_versions(cluster: Cluster) -> list[int]:
    """By each master, of each part of the slots."""
    replies = [master.call("CLUSTER", "SLOTS") for master in cluster.masters()]
    parts = [part for slots in replies if isinstance(slots, list) for part in slots]
    return [len(part) - 3 for part in parts if isinstance(part, list)]


def test_in_a_cluster_every_node_knows_the_scripts(prompt: Prompt, write: Write, cluster: Cluster) -> None:
    # A node does not tell of a replica that never had anything to copy.
    for number in range(30):
        cluster.master_of(f"key {number}").call("SET", f"key {number}", "")
    until(lambda: None if set(replica_versions(cluster)) == {1} else "a replica is not told of", 20)
    cluster.script_flush()
    text = ONE.replace("10/hour", "7/day log")
    assert push(prompt, write, text, "--engine", cluster.url, "--author", "ann") == 0
    owner = cluster.master_of("hg2:rules")
    version = owner.call("HGET", "hg2:rules", "version")
    assert isinstance(version, bytes)
    paper = owner.call("HGET", "hg2:rules", version)
    assert isinstance(paper, bytes)
    scripts = json.loads(json.loads(paper)["document"])["scripts"]
    assert "take sliding_log" in scripts
    stored = cluster.master_of("hg2:scripts")
    for sha in scripts.values():
        assert [node.call("SCRIPT", "EXISTS", sha) for node in cluster.nodes] == [[1]] * len(cluster.nodes)
        assert stored.call("HEXISTS", "hg2:scripts", sha) == 1


def test_programs_follow_what_was_pushed_for_gateways_too(
    prompt: Prompt, write: Write, where: tuple[str, ...], server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(prompt, write, ONE, *where)
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path.cwd()))
    with Limiter.from_rules("pushed", server.url) as gate:
        assert str(gate.check({}).limit) == "10/hour"


def test_no_version_names_a_script_whose_text_could_not_be_stored(
    prompt: Prompt, write: Write, where: tuple[str, ...], server: RedisServer
) -> None:
    server.call("SET", "hg2:scripts", "somebody wrote here")
    assert push(prompt, write, ONE, *where) == 1
    assert "the key hg2:scripts holds a value that headgate did not write" in prompt.err
    assert server.call("EXISTS", "hg2:rules") == 0


def test_stored_scripts_are_not_written_again(server: RedisServer) -> None:
    open_versions(server.url)
    texts = script_texts(compile_bundle(load.parse(ONE), 0))
    sha = next(iter(texts))
    server.call("HSET", "hg2:scripts", sha, "left alone")
    store_texts(engines[-1], texts)
    store_texts(engines[-1], texts)
    assert server.call("HGET", "hg2:scripts", sha) == b"left alone"
    assert server.call("HLEN", "hg2:scripts") == len(texts)
    close_all()


def test_a_rollback_works_the_bundle_out_anew(
    prompt: Prompt, write: Write, where: tuple[str, ...], server: RedisServer
) -> None:
    plain = json.dumps({"rules": [{"name": "a", "limit": "10/hour", "overrides": True}]})
    open_versions(server.url).push(ONE, plain, format="yaml", author="ann")  # before there were bundles
    close_all()
    push(prompt, write, TWO, *where)
    server.call("DEL", "hg2:scripts")
    server.call("SCRIPT", "FLUSH")
    assert prompt("rules", "rollback", *where) == 0, prompt.err
    stored = document_of(server, 3)
    assert stored["rules"] == json.loads(plain)["rules"]
    assert "10/hour" in stored["limits"]
    for sha in stored["scripts"].values():
        assert server.call("SCRIPT", "EXISTS", sha) == [1]
        assert server.call("HEXISTS", "hg2:scripts", sha) == 1


def test_the_same_text_is_pushed_again_if_its_bundle_differs(
    prompt: Prompt, write: Write, where: tuple[str, ...], server: RedisServer
) -> None:
    plain = json.dumps({"rules": [{"name": "a", "limit": "10/hour", "overrides": True}]})
    open_versions(server.url).push(ONE, plain, format="yaml", author="ann")
    close_all()
    document = prompt.json("rules", "push", write(ONE), *where)
    assert (document["pushed"], document["version"], document["same"]) == (True, 2, True)
    assert prompt.json("rules", "push", "rules.yaml", *where)["pushed"] is False


def test_push_without_the_right_to_load_scripts_warns_and_publishes(prompt: Prompt, write: Write) -> None:
    rights = "user ann on >secret ~* +@all -script|load"
    with RedisServer(config=[rights]) as server:
        prompt("rules", "push", write(ONE), "--engine", server.url, "--author", "ann")
        url = f"redis://ann:secret@127.0.0.1:{server.port}/0"
        assert push(prompt, write, TWO.replace("20/hour", "20/hour log"), "--engine", url, "--author", "ann") == 0
        assert prompt.err.startswith("headgate: The scripts could not be loaded everywhere; gateways will do so")
        assert "secret" not in prompt.err
        sha = document_of(server, 2)["scripts"]["take sliding_log"]
        assert server.call("HEXISTS", "hg2:scripts", sha) == 1


TYPOS = "rules:\n  - {name: a, key: ip, missing: skip, limit: 10/hour}\n"


def test_push_warns_of_misspelled_attributes_and_publishes(
    prompt: Prompt, write: Write, where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert push(prompt, write, TYPOS, *where) == 0
    (line,) = prompt.err.splitlines()
    assert line.startswith('headgate: rules.yaml:2: rule "a": no gateway sets the attribute "ip": did you mean')
    elsewhere = write(TYPOS, "elsewhere.yaml")
    assert prompt.json("rules", "push", elsewhere, *where)["pushed"] is False, "warnings name the file: no change"
    assert prompt("rules", "push", elsewhere, *where) == 0
    assert "elsewhere.yaml:2: " in prompt.err


def test_with_strict_they_are_not_pushed(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    assert push(prompt, write, TYPOS, *where, "--strict") == 2
    assert prompt.err.startswith('headgate: rules.yaml:2: rule "a": no gateway sets the attribute "ip": ')
    assert prompt.json("rules", "history", *where) == {"in_force": None, "versions": []}


def test_a_limiter_that_follows_what_was_pushed_logs_them(
    prompt: Prompt, write: Write, where: tuple[str, ...], server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    push(prompt, write, TYPOS, *where)
    Limiter.from_rules("pushed", server.url).close()
    (message,) = caplog.messages
    assert message.startswith("headgate: version 1 in Redis at ")
    assert 'rule "a": no gateway sets the attribute "ip": did you mean address?' in message
