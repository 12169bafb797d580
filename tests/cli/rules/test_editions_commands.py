"""headgate rules push, pull, history, rollback: from a file to the servers and back."""

import json

import pytest

from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write
from tests.servers import Cluster, RedisServer

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
    assert prompt.out.splitlines()[-1] == "Edition 1 is in force: 1 rule."
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
        "Edition 2 is in force: 1 rule.",
    ]
    assert prompt("rules", "diff", "pushed", "rules.yaml", *where, "--exit-code") == 0


def test_the_same_text_is_not_pushed_again(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    push(prompt, write, ONE, *where)
    document = prompt.json("rules", "push", "rules.yaml", *where)
    assert (document["pushed"], document["version"]) == (False, 1)


def test_only_if_that_edition_is_in_force(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    assert push(prompt, write, ONE, *where, "--if-version", "0") == 0
    assert push(prompt, write, TWO, *where, "--if-version", "1") == 0
    assert "somebody was faster" in prompt.told("rules", "push", write(ONE), *where, "--if-version", "1")


def test_what_is_no_rulebook_is_not_pushed(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    assert push(prompt, write, "rules: [{name: a, limit: 10/minit}]", *where) == 2
    assert "10/minute" in prompt.err
    assert prompt.json("rules", "history", *where) == {"in_force": None, "editions": []}


def test_somebody_must_answer_for_it(
    prompt: Prompt, write: Write, where: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.delenv("USERNAME", raising=False)
    assert prompt.told("rules", "push", write(ONE), *where) == "Who publishes this? Say it with --author NAME."


def test_history_and_rollback(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    push(prompt, write, ONE, *where, "--note", "first")
    push(prompt, write, TWO, *where, "--note", "second")
    assert prompt("rules", "rollback", *where, "--note", "too much") == 0
    assert prompt.out.splitlines() == [
        "~ a: changed",
        "    limit: 20/hour -> 10/hour",
        "Edition 3 is in force: the text of edition 1.",
    ]
    assert prompt("rules", "history", *where) == 0
    titles, *rows = prompt.out.splitlines()
    assert titles.split() == ["edition", "published", "author", "note"]
    assert [row.split()[0] for row in rows] == ["3", "2", "1"]
    assert rows[0].split()[1:3] == ["in", "force"]
    assert rows[0].endswith("ann     back to 1; too much")
    document = prompt.json("rules", "history", *where)
    assert (document["in_force"], [each["rolled_back_to"] for each in document["editions"]]) == (
        3,
        [1, None, None],
    )
    assert prompt("rules", "pull", "--version", "2", *where) == 0
    assert prompt.out == TWO
    assert prompt.json("rules", "rollback", "--to", "2", *where)["version"] == 4


def test_what_is_not_there_is_told(prompt: Prompt, where: tuple[str, ...]) -> None:
    assert "No rulebook was pushed" in prompt.told("rules", "pull", *where)
    assert "No edition 7 is kept" in prompt.told("rules", "pull", "--version", "7", *where)
    assert "nothing to roll back" in prompt.told("rules", "rollback", *where)
    assert "No rulebook was pushed" in prompt.told("rules", "diff", "pushed", "pushed", *where)
    assert prompt("rules", "history", *where) == 0
    assert prompt.out == "No rulebook was pushed to this engine yet.\n"


def test_other_commands_go_by_what_was_pushed(prompt: Prompt, write: Write, where: tuple[str, ...]) -> None:
    push(prompt, write, ONE, *where)
    assert prompt.json("take", "all", "--rule", "a", *where)["remaining"] == 9
    assert prompt.json("keys", *where)["keys"][0]["of"] == 10
    assert 'no rule "b" in edition 1' in prompt.told("take", "all", "--rule", "b", *where)
    assert prompt("overrides", "set", "a", "all", "50/hour", *where) == 0
    assert prompt.err == ""
    assert prompt.json("peek", "all", "--rule", "a", *where)["limits"][0]["limit"] == "50/hour"


def test_without_a_rulebook_a_rule_cannot_be_found(prompt: Prompt, where: tuple[str, ...]) -> None:
    assert "give one with --rules FILE" in prompt.told("take", "all", "--rule", "a", *where)


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
