"""headgate rules compile: the bundle in a file, with all that it needs."""

import json
from hashlib import sha1
from pathlib import Path

from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write

BOOK = "rules:\n  - {name: a, limit: 10/hour}\n  - {name: b, limit: 9/month fixed in Europe/Berlin}\n"


def test_a_bundle_has_its_texts_inside(prompt: Prompt, write: Write) -> None:
    document = prompt.json("rules", "compile", write(BOOK), "-o", "rules.bundle.json")
    raw = Path("rules.bundle.json").read_bytes()
    assert document == {"file": "rules.bundle.json", "rules": 2, "bytes": len(raw)}
    bundle = json.loads(raw)
    assert [rule["name"] for rule in bundle["rules"]] == ["a", "b"]
    assert set(bundle["texts"]) == set(bundle["scripts"].values())
    assert all(sha1(text.encode()).hexdigest() == sha for sha, text in bundle["texts"].items())
    assert list(bundle["zones"]) == ["Europe/Berlin"]


def test_without_a_file_it_is_printed(prompt: Prompt, write: Write) -> None:
    assert prompt("rules", "compile", write(BOOK), "--output", "one.json") == 0
    assert prompt.out == f"one.json: 2 rules, {Path('one.json').stat().st_size:,} bytes\n"
    assert prompt("rules", "compile", "rules.yaml") == 0
    written = json.loads(Path("one.json").read_bytes())
    assert json.loads(prompt.out) == written == prompt.json("rules", "compile", "rules.yaml")


def test_an_invalid_rulebook_leaves_the_old_bundle(prompt: Prompt, write: Write) -> None:
    prompt("rules", "compile", write(BOOK), "-o", "rules.bundle.json")
    before = Path("rules.bundle.json").read_bytes()
    assert prompt("rules", "compile", write("rules: [{name: a, limit: 10/minit}]"), "-o", "rules.bundle.json") == 2
    assert "10/minute" in prompt.err
    split = "rules: [{name: a, limit: 1/minute queue 99, where: split, nodes: 99}]"
    assert "too slow for 99 nodes" in prompt.failure("rules", "compile", write(split), "-o", "rules.bundle.json")
    assert Path("rules.bundle.json").read_bytes() == before


def test_an_unwritable_output_path_is_reported(prompt: Prompt, write: Write) -> None:
    message = prompt.failure("rules", "compile", write(BOOK), "-o", "nowhere/x.json")
    assert message == "nowhere/x.json cannot be written: No such file or directory."
    assert "is not a file" in prompt.failure("rules", "compile", "rules.yaml", "-o", "/dev/null")
