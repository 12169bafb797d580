"""Every nginx snippet in the documentation runs in a real nginx with the gateway, and serves a page.

A snippet is lines for `http` or for `server`, and need not be whole: what the gateway needs beside it is added.
What stands for the reader's own machine is put right: where Redis is, ports, and files under /etc and /var. The
rulebook is the first of its page. The page that translates limit_req says what `headgate rules import` says.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headgate.cli import main
from headgate.rules import load, serialization
from headgate.rules.imports import translate
from tests.docs.test_snippets import PAGES, ROOT
from tests.nginx.gateway_harness import NginxGateway, push
from tests.servers import Nginx, RedisServer
from tests.servers.nginx import LIB
from tests.servers.redis_server import free_port
from tests.servers.tls import certificates

# What a gateway needs, by the words that tell whether a snippet has it.
IN_HTTP = {
    "lua_shared_dict ": "lua_shared_dict headgate 5m;",
    "$headgate_status {": 'map "" $headgate_status { default ""; }',
    "$headgate_rule {": 'map "" $headgate_rule { default ""; }',
    "$headgate_remaining {": 'map "" $headgate_remaining { default ""; }',
    "$headgate_dry_run {": 'map "" $headgate_dry_run { default ""; }',
    "log_format headgate": "log_format headgate '$headgate_status $headgate_rule $headgate_remaining';",
    "init_by_lua_block": 'init_by_lua_block { require("resty.headgate").init { redis = "redis://here" } }',
    "init_worker_by_lua_block": 'init_worker_by_lua_block { require("resty.headgate").start() }',
}
IN_SERVER = {
    "access_by_lua_block": 'access_by_lua_block { require("resty.headgate").access() }',
    "log_by_lua_block": 'log_by_lua_block { require("resty.headgate").log() }',
    "location / {": 'location / { content_by_lua_block { ngx.say("ok") } }',
}
ONLY_IN_SERVERS = {"location", "error_page"}

_block = re.compile(r"^```nginx\n(.*?)^```", re.M | re.S)
_yaml = re.compile(r"^```yaml\n(.*?)^```", re.M | re.S)
_pair = re.compile(r"^```nginx\n(.*?)^```\n\n```yaml\n(.*?)^```", re.M | re.S)


class NginxSnippet(NamedTuple):
    page: Path
    line: int
    text: str

    @property
    def level(self) -> str:
        """The block it is for, by the words that begin its lines."""
        words = {line.split()[0] for line in self.text.splitlines() if re.match(r"\w", line)}
        return "server" if words & ONLY_IN_SERVERS else "http"


SNIPPETS = [
    NginxSnippet(page, text[: match.start(1)].count("\n"), match[1])
    for page in [*PAGES, ROOT / "nginx" / "README.md"]
    for text in [page.read_text("utf-8")]
    for match in _block.finditer(text)
]


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda each: f"{each.page.relative_to(ROOT)}:{each.line}")
def test_nginx_runs_it(snippet: NginxSnippet, redis_server: RedisServer) -> None:
    book = _book(snippet.page)
    push(book, redis_server.url)
    nginx = _nginx(snippet, redis_server.url)
    _compile(book, nginx.folder)
    with nginx:
        assert nginx.get("/").status in {200, 404, 502}  # behind this gate may be nobody
        wrong = re.compile(r"\[(emerg|alert|crit|error)\](?!.*connect\(\) failed)")
        assert not [line for line in nginx.log.splitlines() if wrong.search(line)]


@pytest.mark.parametrize(
    "broken",
    [
        "lua_shared_dikt headgate 5m;\n",
        'init_by_lua_block { require("resty.headgate").init { redsi = "redis://here" } }\n',
        'init_by_lua_block { require("resty.headgate").init { redis = "redis://here?prefetch=100ms" } }\n',
        'init_by_lua_block { require("resty.headgate").init { rules = "/etc/nowhere/to-be-found.json" } }\n',
        'access_by_lua_block { require("resty.headgate").acess() }\n',
        "access_by_lua_block { this is no Lua }\n",
    ],
)
def test_a_broken_snippet_fails(broken: str, redis_server: RedisServer) -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        test_nginx_runs_it(NginxSnippet(ROOT / "docs" / "how-to" / "nginx.md", 0, broken), redis_server)


def test_there_are_snippets() -> None:
    assert len(SNIPPETS) > 15
    assert {each.level for each in SNIPPETS} == {"http", "server"}


PAIRS = _pair.findall((ROOT / "docs" / "how-to" / "limit-req.md").read_text("utf-8"))


@pytest.mark.parametrize(("there", "here"), PAIRS, ids=[re.findall(r"zone=(\w+)", pair[0])[0] for pair in PAIRS])
def test_a_translation_is_what_import_makes_of_it(there: str, here: str) -> None:
    """Rule by rule."""
    translated = translate(there, kind="nginx")
    made = serialization.document(load.from_mapping(translated.document))["rules"]
    shown = serialization.document(load.parse(f"rules:\n{here}"))["rules"]
    for rule in (*made, *shown):
        if rule["key"] in ("address/32/128", "host"):
            rule.pop("missing", None)  # they never are
    assert shown == made


# Paths, each with the API key of who asks.
CALLS = {
    "login": [("/login", "")] * 8 + [("/elsewhere", "")],
    "partners": [("/partners/", "k1")] * 3 + [("/partners/", "")] * 3 + [("/partners/x", "k2")],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_translation_does_what_the_lines_did(name: str) -> None:
    """Both by real nginx: its own limits, and ours."""
    there, here = next(pair for pair in PAIRS if f"zone={name}:" in pair[0])
    content = 'content_by_lua_block { ngx.say("ok") }'
    zones, server = there.split("server {\n")
    server = server.removesuffix("}\n").replace("    limit_req ", f"    {content} limit_req ")
    with Nginx(f"{server} location / {{ {content} }}", http=zones) as nginx:
        before = [nginx.get(path, {"X-Api-Key": key}).status for path, key in CALLS[name]]
    with NginxGateway(serialization.document(load.parse(f"rules:\n{here}"))) as gate:
        after = [gate.get(path, {"X-Api-Key": key}).status for path, key in CALLS[name]]
    assert after == before
    assert len(set(before)) == 2  # some passed, some did not


def test_most_lines_are_translated() -> None:
    assert len(PAIRS) > 7


REFERENCE = (ROOT / "docs" / "reference" / "nginx.md").read_text("utf-8")


def test_every_module_is_named() -> None:
    here = LIB / "resty" / "headgate"
    modules = {str(path.relative_to(here).with_suffix("")).replace("/", ".") for path in here.rglob("*.lua")}
    cells = re.findall(r"^\| (`.*?) \|", REFERENCE.split("## Modules")[1], re.M)
    named = {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    assert {name for name in modules if not name.startswith("algorithms.")} == named - {"resty.headgate"}


def test_every_option_is_named() -> None:
    text = (LIB / "resty" / "headgate" / "gateway.lua").read_text("utf-8")
    options = set(re.findall(r'(\w+) = "(?:string|table|boolean|number)"', text))
    section = REFERENCE.split("## Options of init")[1].split("```")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.M)) == options


def _book(page: Path) -> dict[str, Any]:
    """The page's, or one that says little."""
    texts = [text for text in _yaml.findall(page.read_text("utf-8")) if not text.startswith("- ")]
    return (
        serialization.document(load.parse(texts[0])) if texts else {"rules": [{"name": "all", "limit": "100/s"}]}
    )


def _compile(book: dict[str, Any], folder: Path) -> None:
    """Compiles the rulebook to the path where snippets find it."""
    (folder / "book.json").write_text(json.dumps(book))
    assert main(["rules", "compile", str(folder / "book.json"), "-o", str(folder / "rules.bundle.json")]) == 0


def _nginx(snippet: NginxSnippet, redis: str) -> Nginx:
    nginx = Nginx("")
    blocks = {"http": "", "server": "", snippet.level: snippet.text}
    for level, needed in (("http", IN_HTTP), ("server", IN_SERVER)):
        for words, line in needed.items():
            if words not in blocks[level] and (words not in snippet.text or words.startswith("location")):
                blocks[level] = f"{line}\n{blocks[level]}"
    nginx.configure(**{level: _put_right(text, nginx.folder, redis) for level, text in blocks.items()})
    return nginx


def _put_right(text: str, folder: Path, redis: str) -> str:
    text = re.sub(r"^lua_package_path .*$", "", text, flags=re.M)  # the test's nginx has it
    # A busy machine may need more than the 50 ms that a gate waits.
    text = re.sub(r"&deadline=\w+|(?<=\?)deadline=\w+&", "", text)
    text = re.sub(r'"redis://[^"?]*\??', f'"{redis}?deadline=10s&', text).replace('&"', '"')
    text = re.sub(r"^server {", lambda _: f"server {{\n  listen 127.0.0.1:{free_port()};", text, flags=re.M)
    text = text.replace("/etc/ssl/certs/ca-certificates.crt", str(certificates().authority))
    return re.sub(r"(?<![\w.])/(?:etc|var)/[\w./-]*/([\w.-]+)", rf"{folder}/\1", text)
