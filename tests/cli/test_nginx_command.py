"""headgate nginx: a configuration that works by copy and paste, and what nginx itself says of one."""

import json
import os
import signal
import socket
import subprocess
from http.client import HTTPConnection
from pathlib import Path

import pytest
import yaml

from headgate.cli.nginx import _modules
from headgate.gateway import lua_library
from tests.cli.conftest import Prompt
from tests.cli.rules.conftest import Write, write
from tests.servers import Nginx
from tests.servers.redis_server import free_port
from tests.servers.server_programs import command
from tests.servers.wait_until import until

__all__ = ["write"]  # the fixture

BOOK = (
    "rules:\n  - {name: a, key: address, limit: 10/hour}\n  - {name: b, key: tenant, missing: skip, limit: 9/s}\n"
)


def test_it_prints_a_whole_configuration(prompt: Prompt, write: Write) -> None:
    url = "redis://:secret@cache:6379/0?fallback=local"
    words = ("--engine", url, "--prefix", "shop", "--listen", "81", "--backend", "http://b:9", "--workers", "3")
    assert prompt("nginx", "conf", write(BOOK), *words) == 0
    assert prompt.err == ""
    lines = [line.strip() for line in prompt.out.splitlines()]
    for line in (
        f'lua_package_path "{lua_library.folder()}/?.lua;;";',
        "lua_shared_dict headgate 20m;",
        'map "" $headgate_status { default ""; }',
        'map "" $headgate_rule { default ""; }',
        'map "" $headgate_remaining { default ""; }',
        'map "" $headgate_dry_run { default ""; }',
        f'redis = "{url}",',
        'prefix = "shop",',
        'dict = "headgate",',
        '-- tenant = "$http_x_tenant",  -- rule b',
        'init_worker_by_lua_block { require("resty.headgate").start() }',
        'access_by_lua_block { require("resty.headgate").access() }',
        '# log_by_lua_block { require("resty.headgate").log() }',  # no rule has slots
        "worker_processes 3;",
        "listen 81;",
        "proxy_pass http://b:9;",
    ):
        assert line in lines
    assert all(f"$headgate_{name}" in prompt.out for name in ("status", "rule", "remaining", "dry_run"))
    commands = [line for line in lines if line.startswith("#   headgate nginx conf")]
    shown = "rules.yaml --engine 'redis://...@cache:6379/0?fallback=local' --prefix shop"
    assert commands == [f"#   headgate nginx conf {shown} --listen 81 --backend http://b:9 --workers 3"]


def test_slots_need_the_log_phase(prompt: Prompt, write: Write) -> None:
    assert prompt("nginx", "conf", write("rules: [{name: a, limit: 3 slots}]"), "--engine", "redis://h") == 0
    lines = [line.strip() for line in prompt.out.splitlines()]
    assert 'log_by_lua_block { require("resty.headgate").log() }' in lines


def test_headers_with_underscores_need_a_directive(prompt: Prompt, write: Write) -> None:
    rulebook = "  # header.not_this\n" + BOOK.replace("key: tenant", "key: [header.api_key, header.X-Some_Thing]")
    for text, name in ((rulebook, "rules.yaml"), (json.dumps(yaml.safe_load(rulebook)), "rules.json")):
        assert prompt("nginx", "conf", write(text, name), "--engine", "redis://10.0.0.7") == 0
        lines = [line.strip() for line in prompt.out.splitlines()]
        assert "underscores_in_headers on;" in lines
        assert lines[lines.index("underscores_in_headers on;") - 1].startswith(
            "# Rules use api_key, X-Some_Thing."
        )
        assert prompt("nginx", "check", name) == 0
    assert prompt("nginx", "conf", write(BOOK.replace("key: tenant", "key: header.x-api-key"))) == 0
    assert "# underscores_in_headers on;" in prompt.out
    assert "\n  underscores_in_headers" not in prompt.out
    assert prompt("nginx", "conf", write(BOOK)) == 0
    assert "underscores_in_headers" not in prompt.out


def test_the_engine_may_come_from_the_environment(
    prompt: Prompt, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert '"redis://127.0.0.1:6379/0?fallback=local"' in prompt.json("nginx", "conf", write(BOOK))["conf"]
    monkeypatch.setenv("HEADGATE_ENGINE", "redis://10.0.0.7:6379/0")
    assert '"redis://10.0.0.7:6379/0"' in prompt.json("nginx", "conf", "rules.yaml")["conf"]
    assert "redis://" not in prompt.json("nginx", "conf", "rules.yaml", "--shared")["conf"]


def test_shared_says_how_the_bundle_is_made_and_the_line_works(prompt: Prompt, write: Write) -> None:
    assert prompt("nginx", "conf", write(BOOK), "--shared") == 0
    path = Path.cwd() / "rules.bundle.json"
    assert f'rules = "{path}",' in prompt.out
    assert 'engine = "shared",' in prompt.out
    sentence, _, line = prompt.err.strip().partition(":  ")
    assert sentence == "headgate: The compiled rulebook is not there yet. Make it by"
    assert line == f"headgate rules compile rules.yaml -o {path}"
    assert prompt(*line.split()[1:]) == 0
    assert path.exists()
    assert prompt("nginx", "conf", "rules.yaml", "--shared") == 0
    assert prompt.err == ""


def test_a_bundle_that_is_named_is_written(prompt: Prompt, write: Write) -> None:
    assert prompt("nginx", "conf", write(BOOK), "--shared", "--bundle", "one.json") == 0
    assert prompt.err == ""
    assert f'rules = "{Path.cwd() / "one.json"}",' in prompt.out
    bundle = json.loads(Path("one.json").read_bytes())
    assert set(bundle["texts"]) == set(bundle["scripts"].values())
    document = prompt.json("nginx", "conf", "rules.yaml", "--bundle", "two.json", "--engine", "redis://10.0.0.7/0")
    assert document["bundle"] == str(Path.cwd() / "two.json")
    assert 'redis = "redis://10.0.0.7/0",' in document["conf"]
    assert Path("two.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--engine", "redis://h/0", "--shared"), "not allowed with argument --engine"),
        (("--engine", "memory://"), "nginx counts in Redis, or with --shared in itself."),
        (("--engine", "10.0.0.7:6379"), "nginx counts in Redis, or with --shared in itself."),
        (("--engine", "redis://h/0?fallback=perhaps"), "perhaps"),
        (("--listen", "65536"), "A port is a number up to 65535, not 65536."),
        (("--listen", "http"), "a whole number of at least 1"),
        (("--workers", "0"), "a whole number of at least 1"),
        (("--backend", "127.0.0.1:8080"), "The backend is not a URL such as http://127.0.0.1:8080"),
    ],
)
def test_invalid_options_are_reported(prompt: Prompt, write: Write, words: tuple[str, ...], message: str) -> None:
    assert message in prompt.failure("nginx", "conf", write(BOOK), *words)
    assert os.listdir() == ["rules.yaml"]


def test_nginx_takes_what_is_printed(prompt: Prompt, write: Write) -> None:
    for words in (
        (),
        ("--shared",),
        ("--engine", "redis://10.0.0.7:6379/0?fallback=local"),
        ("--bundle", "x.json"),
    ):
        assert prompt("nginx", "check", write(BOOK), *words) == 0, prompt.err
        assert (prompt.out, prompt.err) == ("nginx accepts it.\n", "")
    assert os.listdir() == ["rules.yaml"]  # what is checked is made elsewhere


def statuses(port: int, count: int) -> list[int]:
    codes = []
    for _ in range(count):
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("GET", "/")
        codes.append(connection.getresponse().status)
        connection.close()
    return codes


def test_the_printed_configuration_runs_unchanged(prompt: Prompt, write: Write) -> None:
    port, here = free_port(), Path.cwd()
    with Nginx("location / { content_by_lua_block { ngx.say('behind the gate') } }") as backend:
        words = ("--shared", "--bundle", "one.json", "--listen", str(port), "--backend", backend.url)
        write("rules: [{name: all, limit: 2/hour}]")
        assert prompt("nginx", "conf", "rules.yaml", *words, "--workers", "2") == 0
        conf = write(prompt.out.replace("/var/log/nginx", str(here)), "nginx.conf")  # all that is changed
        os.chmod(here, 0o755)
        line = [str(command("nginx", "nginx")), "-c", str(here / conf), "-g", f"pid {here}/pid; daemon off;"]
        with subprocess.Popen(line, stderr=subprocess.PIPE) as running:
            try:
                until(lambda: None if (here / "pid").exists() and reached(port) else "nginx does not answer", 20)
                assert statuses(port, 4) == [200, 200, 429, 429], (here / "error.log").read_text()
            finally:
                running.send_signal(signal.SIGQUIT)  # workers end what they have begun, and log it
    logged = [line.partition(" gate=")[2].split() for line in (here / "access.log").read_text().splitlines()]
    assert sorted(words[1:] for words in logged) == [  # two workers log, each in its own time
        *[["rule=all", "remaining=0", "dry_run="]] * 3,
        ["rule=all", "remaining=1", "dry_run="],
    ]


def reached(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


def test_nginx_says_itself_what_is_wrong(prompt: Prompt, write: Write) -> None:
    write("events {}\nhttp {\n  server { lissten 80; }\n}\n", "nginx.conf")
    assert prompt("nginx", "check", "nginx.conf") == 2
    assert f'unknown directive "lissten" in {Path.cwd()}/nginx.conf:3' in prompt.out
    assert prompt.out.endswith("nginx does not accept it.\n")
    document = prompt.json("nginx", "check", "nginx.conf", code=2)
    assert document["valid"] is False
    assert "lissten" in document["nginx"]
    assert prompt.failure("nginx", "check", "nowhere.conf") == "nowhere.conf is not a file."
    assert prompt("nginx", "check", write("rules: [{name: a, limit: 10/minit}]")) == 2
    assert "10/minute" in prompt.err


def test_a_lua_path_without_headgate_is_reported(prompt: Prompt, write: Write) -> None:
    assert prompt("nginx", "conf", write(BOOK)) == 0
    ours = str(lua_library.folder())
    for name, text in (("here.conf", prompt.out), ("elsewhere.conf", prompt.out.replace(ours, "/nowhere"))):
        moved = text.replace("/var/log/nginx", str(Path.cwd()))
        write(f"pid {Path.cwd()}/pid;\n{moved}", name)
    assert prompt("nginx", "check", "here.conf") == 0, prompt.out
    assert prompt.err == ""
    assert prompt("nginx", "check", "elsewhere.conf") == 2
    assert f'Add to http:  lua_package_path "{ours}/?.lua;;";' in prompt.out


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (
            'redis = "',
            'redsi = "',
            'headgate: init knows no option "redsi". Did you mean redis? It knows attributes,',
        ),
        ('dict = "headgate"', 'dict = "gate"', "lua_shared_dict"),
        ("fallback=local", "fallback=perhaps", "perhaps"),
        (
            'dict = "headgate"',
            'rules = "/nowhere/bundle.json"',
            "the rulebook /nowhere/bundle.json cannot be followed",
        ),
        ("init{", "begin{", "attempt to call field 'begin'"),
        ('require("resty.headgate").init{', 'require("resty.headgate").init{{', "unexpected"),
    ],
)
def test_the_lua_of_init_is_run(prompt: Prompt, write: Write, before: str, after: str, message: str) -> None:
    assert prompt("nginx", "conf", write(BOOK)) == 0
    here = Path.cwd()
    right = f"pid {here}/pid;\n" + prompt.out.replace("/var/log/nginx", str(here))
    assert before in right
    write(right, "right.conf")
    write(right.replace(before, after), "wrong.conf")
    assert prompt("nginx", "check", "right.conf") == 0, prompt.out
    assert prompt("nginx", "check", "wrong.conf") == 2
    assert message in prompt.out
    assert prompt.out.endswith("nginx does not accept it.\n")


def test_init_may_stand_in_a_file_or_in_quotes(prompt: Prompt, write: Write) -> None:
    here = Path.cwd()
    top = "".join(f"load_module {path};\n" for path in _modules() or [])
    top += f"pid {here}/pid; error_log {here}/error.log; events {{}}\n"
    http = f'access_log off; lua_package_path "{lua_library.folder()}/?.lua;;"; lua_shared_dict headgate 1m;\n'
    for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        http += f"{name}_temp_path {here}/{name};\n"
    for option, code in (("redis", 0), ("redsi", 2)):
        lua = f'require("resty.headgate").init {{ {option} = "redis://127.0.0.1" }}'
        write(f"-- it's a {{\n{lua}", "init.lua")
        for line in (f"init_by_lua_file {here}/init.lua;", f"init_by_lua '{lua}';"):
            write(f"{top} http {{ {http} {line} }}\n# resty.headgate", "nginx.conf")
            assert prompt("nginx", "check", "nginx.conf") == code, prompt.out
    write(f"{top} http {{ {http} }}\n# resty.headgate", "nginx.conf")
    assert prompt("nginx", "check", "nginx.conf") == 0
    assert "no init_by_lua_block calls its init" in prompt.err


def test_without_nginx_the_package_to_install_is_named(
    prompt: Prompt, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.cli.nginx._PROGRAM_FOLDERS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    message = prompt.failure("nginx", "check", write(BOOK))
    assert message.startswith("There is no nginx on this machine.")
    assert "apt install nginx libnginx-mod-http-lua lua-cjson" in message
    assert prompt("nginx", "conf", "rules.yaml") == 0
    assert "# load_module /usr/share/nginx/modules/ngx_http_lua_module.so;" in prompt.out


def test_attributes_that_look_misspelled_are_warnings(prompt: Prompt, write: Write) -> None:
    book = write("rules:\n  - {name: a, when: {pth: /login}, key: usr, missing: skip, limit: 10/hour}\n")
    assert prompt("rules", "validate", book) == 0
    expected = [line.removeprefix("warning: ") for line in prompt.out.splitlines() if line.startswith("warning: ")]
    assert len(expected) == 2
    assert prompt("nginx", "conf", book, "--engine", "redis://10.0.0.7") == 0
    assert prompt.err.splitlines() == [f"headgate: {warning}" for warning in expected]
    assert prompt("nginx", "conf", book, "--shared", "--bundle", "rules.bundle.json") == 0
    assert json.loads(Path("rules.bundle.json").read_text())["warnings"] == expected
    assert prompt("nginx", "check", book, "--engine", "redis://10.0.0.7") == 0
    assert prompt.err.splitlines() == [f"headgate: {warning}" for warning in expected]
