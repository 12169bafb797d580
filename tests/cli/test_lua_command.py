"""headgate lua: what there is, what it says, and getting it onto a server without telling anybody's password."""

import subprocess
from hashlib import sha1
from pathlib import Path

import pytest

from headgate.cli import main
from headgate.cli.lua import scripts
from headgate.engines.redis.published_scripts import SCRIPT_NAMES
from tests.cli.conftest import Prompt
from tests.servers import RedisServer

SECRET = "open sesame"


def test_every_script_is_listed_with_its_size_and_sha1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lua", "list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[0] for row in rows] == list(scripts())
    for name, size, sha in rows:
        text = scripts()[name].text
        assert (int(size.replace(",", "")), sha) == (len(text), sha1(text.encode()).hexdigest())


def test_show_prints_the_script_that_the_server_runs(
    capsys: pytest.CaptureFixture[str], server: RedisServer
) -> None:
    for name, script in scripts().items():
        assert main(["lua", "show", name]) == 0
        shown = capsys.readouterr().out
        assert sha1(shown.encode()).hexdigest() == script.sha  # headgate lua show NAME | sha1sum
        assert server.call("SCRIPT", "LOAD", shown) == script.sha.encode()


def test_publish_loads_stores_and_says_what_to_call(
    capsys: pytest.CaptureFixture[str], server: RedisServer
) -> None:
    assert main(["lua", "publish", "--engine", server.url]) == 0
    out = capsys.readouterr().out
    for name in SCRIPT_NAMES:
        sha = server.call("GET", f"lua:sha1:{name}")
        assert isinstance(sha, bytes)
        assert f"lua:sha1:{name} = {sha.decode()}\n" in out
        assert server.call("SCRIPT", "EXISTS", sha) == [1]
    assert "EVALSHA <sha> 1 <key> acquire N" in out


def test_the_engine_may_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_ENGINE", server.unix_url)
    assert main(["lua", "publish"]) == 0
    assert server.call("EXISTS", "lua:sha1:rate_limiter") == 1
    assert "rate_limiter" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "",
            "No server is given. Write headgate lua publish --engine redis://host:6379/0, or set HEADGATE_ENGINE.",
        ),
        ("memory://", "there is no server to publish to"),
        ("rediss:/host", "is not an engine URL"),
        ("reddis://host", "Did you mean redis://?"),
        (f"me:{SECRET}@host:6379", "is not an engine URL"),
        (f"redis://:{SECRET}/x@host:6379", "cannot be read"),
        (f"redis://host:{SECRET}", "is not a number from 1 to 65535"),
        (f"redis://[{SECRET}", "cannot be read"),
    ],
)
def test_an_invalid_engine_url_is_reported_without_its_secrets(
    capsys: pytest.CaptureFixture[str], url: str, message: str
) -> None:
    assert main(["lua", "publish", "--engine", url]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert SECRET not in captured.err
    assert captured.err.count("\n") == 1


def test_an_unreachable_server_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lua", "publish", "--engine", "redis://:sesame@127.0.0.1:1/0"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("headgate: Redis at 127.0.0.1:1 ")
    assert "sesame" not in err
    assert err.count("\n") == 1


def test_a_wrong_password_exits_with_1_and_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with RedisServer(password="right") as server:
        assert main(["lua", "publish", "--engine", f"redis://:sesame@127.0.0.1:{server.port}/0"]) == 1
    err = capsys.readouterr().err
    assert "refused the user or the password" in err
    assert "sesame" not in err


def test_path_names_what_lua_package_path_needs(prompt: Prompt) -> None:
    assert prompt("lua", "path") == 0
    path = prompt.out.removesuffix("\n")
    assert path.endswith("/?.lua")
    assert prompt.json("lua", "path") == {"path": path}
    subprocess.run(
        ["luajit", "-e", f"package.path = '{path}' require 'resty.headgate.rules.match'"], check=True, cwd="/"
    )


def test_copy_makes_a_folder_that_needs_nothing_else(prompt: Prompt, tmp_path: Path) -> None:
    document = prompt.json("lua", "copy", str(tmp_path / "lib"))
    assert document["path"] == f"{tmp_path}/lib/?.lua"
    assert "resty/headgate/algorithms/token_bucket.lua" in document["files"]
    program = f"package.path = '{document['path']}' require 'resty.headgate.algorithms.token_bucket'"
    subprocess.run(["luajit", "-e", program], check=True, cwd="/")
    assert prompt("lua", "copy", str(tmp_path / "lib")) == 0
    count = len(document["files"])
    assert prompt.out == f'{count} files copied. In nginx.conf:  lua_package_path "{tmp_path}/lib/?.lua;;";\n'
    (tmp_path / "file").write_text("")
    assert "cannot be made: Not a directory" in prompt.failure("lua", "copy", str(tmp_path / "file"))
