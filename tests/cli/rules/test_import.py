"""headgate rules import: a rulebook on stdout that can be used, and notes on stderr."""

from pathlib import Path

from headgate.rules import load
from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write

NGINX = """
limit_req_zone $binary_remote_addr zone=one:10m rate=10r/s;
server {
    location /login { limit_req zone=one burst=5 nodelay; limit_req_dry_run on; }
}
"""


def test_what_is_written_is_a_rulebook(prompt: Prompt, write: Write) -> None:
    assert prompt("rules", "import", write(NGINX, "nginx.conf")) == 0
    Path("rules.yaml").write_text(prompt.out)
    book = load.read("rules.yaml")
    assert [rule.limit.otherwise[0].text for rule in book.rules] == ["10/s queue 5 nodelay"]
    assert prompt("rules", "validate", "rules.yaml") == 0


def test_as_json_the_notes_are_part_of_it(prompt: Prompt, write: Write) -> None:
    document = prompt.json("rules", "import", write(NGINX, "nginx.conf"), "--kind", "nginx")
    assert load.from_mapping(document["document"]).rules
    assert all(set(note) == {"line", "note"} for note in document["notes"])
    assert prompt.err == ""


def test_an_unreadable_file_is_reported(prompt: Prompt, write: Write) -> None:
    assert "This kind of file is not recognized" in prompt.failure("rules", "import", write("hello", "x.txt"))
    assert "none.conf cannot be read" in prompt.failure("rules", "import", "none.conf")
    assert '"apache" is not what --kind may be' in prompt.failure("rules", "import", "x.txt", "--kind", "apache")


def test_errors_and_notes_begin_with_the_file_and_the_line(prompt: Prompt, write: Write) -> None:
    envoy = write("domain: a\ndescriptor: []\n", "ratelimit.yaml")
    assert prompt.failure("rules", "import", envoy).startswith(
        'ratelimit.yaml:2: "descriptor" is not a key of the file.'
    )
    conf = write("http {\n  limit_req zone=one\n}\n", "nginx.conf")
    error = prompt.failure("rules", "import", conf, "--kind", "nginx")
    assert error == 'nginx.conf:2: "limit_req" is not ended by a semicolon.'
    assert prompt.failure("rules", "import", write("hello", "x.txt")).startswith(
        "x.txt: This kind of file is not recognized."
    )
    bandwidth = NGINX.replace("burst=5", "burst=5 nodelay; limit_rate 10k; limit_req zone=one")
    assert prompt("rules", "import", write(bandwidth, "nginx.conf")) == 0
    assert "\nheadgate: nginx.conf:4: limit_rate limits bandwidth" in prompt.err


def test_an_option_of_another_kind_is_refused(prompt: Prompt, write: Write) -> None:
    words = ("rules", "import", write(NGINX, "nginx.conf"))
    assert (
        prompt.failure(*words, "--domain")
        == "--domain (in a program domain=) is for files of envoy; this one is of nginx."
    )
    assert (
        prompt.failure(*words, "--strategy", "fixed-window")
        == "--strategy (in a program strategy=) is for files of limits; this one is of nginx."
    )
