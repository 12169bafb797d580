"""headgate rules validate: every line that is wrong, and an exit code for a team's checks."""

import json

from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write

GOOD = """
    rules:
      - {name: a, limit: 10/s}
      - {name: b, limit: 10/minute}
"""
BAD = """
    rules:
      - name: login
        limit: 10/minit
      - name: items
        limt: 5/s
        limit: 5/s
"""


def test_a_rulebook_is_one(prompt: Prompt, write: Write) -> None:
    assert prompt("rules", "validate", write(GOOD)) == 0
    assert (prompt.out, prompt.err) == ("rules.yaml: 2 rules\n", "")
    assert prompt.json("rules", "validate", "rules.yaml") == {
        "valid": True,
        "files": [{"file": "rules.yaml", "valid": True, "rules": 2, "problems": [], "warnings": []}],
    }


def test_every_problem_has_its_line(prompt: Prompt, write: Write) -> None:
    assert prompt("rules", "validate", write(GOOD), write(BAD, "bad.yaml")) == 2
    assert prompt.out.startswith("rules.yaml: 2 rules\nbad.yaml:4: ")
    assert "10/minute" in prompt.out
    assert "bad.yaml:6: " in prompt.out
    document = prompt.json("rules", "validate", "bad.yaml", code=2)
    assert [problem["line"] for problem in document["files"][0]["problems"]] == [4, 6]


def test_missing_files_and_unknown_formats_are_reported(prompt: Prompt, write: Write) -> None:
    write(GOOD, "rules.txt")
    document = prompt.json("rules", "validate", "none.yaml", "rules.txt", code=2)
    messages = [file["problems"][0]["message"] for file in document["files"]]
    assert messages[0].startswith("none.yaml: The rulebook cannot be read")
    assert "no format of a rulebook" in messages[1]


def test_elsewhere_a_bad_rulebook_is_an_error_with_all_its_problems(prompt: Prompt, write: Write) -> None:
    assert prompt("rules", "explain", write(BAD)) == 2
    assert prompt.err.startswith("headgate: rules.yaml:4: ")
    assert "rules.yaml:6: " in prompt.err
    assert prompt("rules", "explain", "rules.yaml", "--json") == 2
    assert [problem["line"] for problem in json.loads(prompt.err)["problems"]] == [4, 6]


TYPOS = """
    rules:
      - name: login
        when: {methods: POST, path: /login}
        key: ip
        missing: skip
        limit: 5/minute
"""


def test_attributes_that_look_misspelled_are_warnings(prompt: Prompt, write: Write) -> None:
    assert prompt("rules", "validate", write(TYPOS)) == 0
    first, second, third = prompt.out.splitlines()
    assert first == "rules.yaml: 1 rule"
    assert second.startswith('warning: rules.yaml:4: rule "login": no gateway sets the attribute "methods": ')
    assert third.startswith('warning: rules.yaml:5: rule "login": no gateway sets the attribute "ip": ')
    (file,) = prompt.json("rules", "validate", "rules.yaml")["files"]
    assert [warning["line"] for warning in file["warnings"]] == [4, 5]
    assert (file["valid"], file["problems"]) == (True, [])


def test_with_strict_they_are_errors(prompt: Prompt, write: Write) -> None:
    assert prompt("rules", "validate", write(TYPOS), "--strict") == 2
    assert prompt.out.startswith('rules.yaml:4: rule "login": no gateway sets the attribute "methods": ')
    (file,) = prompt.json("rules", "validate", "rules.yaml", "--strict", code=2)["files"]
    assert [problem["line"] for problem in file["problems"]] == [4, 5]
    assert prompt("rules", "validate", write(GOOD), "--strict") == 0


def test_explain_and_test_print_each_warning_once(prompt: Prompt, write: Write) -> None:
    assert prompt("rules", "explain", write(TYPOS), "--path", "/") == 0
    assert prompt.err.count("headgate: rules.yaml:") == 2
    prompt.json("rules", "explain", "rules.yaml", "--path", "/")
    assert [json.loads(line)["warning"][:13] for line in prompt.err.splitlines()] == [
        "rules.yaml:4:",
        "rules.yaml:5:",
    ]
    call = "{calls: [{attributes: {user: a}, expect: allowed}]}"
    write(f"rules: rules.yaml\ncases: [{call}, {call}]", "cases.yaml")
    assert prompt("rules", "test", "cases.yaml") == 0
    assert prompt.err.count("headgate: rules.yaml:") == 2
