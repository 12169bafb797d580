"""A configuration for a rulebook: what it says of the book, and that a real nginx takes it whatever is in it."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.cli.nginx import _modules
from headgate.errors import InvalidRule
from headgate.gateway import lua_library
from headgate.gateway.nginx_conf import NginxOptions, render_conf, unknown_attributes
from headgate.rules import load
from headgate.rules.rule import Rulebook
from tests.rules.random_rulebooks import books
from tests.servers.server_programs import command

BOOK = load.parse("""
rules:
  - {name: login, when: {path: /login}, key: address, limit: 5/minute}
  - name: items
    when: {path: "/items/{sku}"}
    key: [user, sku]
    missing: deny
    limit: {by: plan, cases: {free: 10/s}, otherwise: 100/s}
  - {name: bulk, key: [tenant, header.x-api-key, cookie.sid], missing: skip, cost: units, limit: 1000/day}
""")
GATE = NginxOptions(package_path="/opt/lib/?.lua", engine="redis://10.0.0.7:6379/0")


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_attributes_that_nginx_does_not_know_are_listed() -> None:
    assert {name: [rule.name for rule in rules] for name, rules in unknown_attributes(BOOK).items()} == {
        "plan": ["items"],
        "tenant": ["bulk"],
        "units": ["bulk"],
        "user": ["items"],
    }
    conf = lines(render_conf(BOOK, GATE))
    assert '-- user = "$remote_user",  -- rule items; without it items refuses every call' in conf
    assert '-- tenant = "$http_x_tenant",  -- rule bulk' in conf
    assert '-- plan = "$http_x_plan",  -- rule items' in conf
    assert not any(line.startswith(("-- sku", "-- address", "-- path")) for line in conf)


def test_a_book_that_nginx_knows_all_of_asks_for_nothing() -> None:
    conf = render_conf(load.parse("rules: [{name: a, key: address, limit: 1/s}]"), GATE)
    assert "attributes = {" not in conf
    assert "uses no other attribute" in conf


def test_an_engine_that_is_named_needs_a_dns_server_and_one_with_tls_needs_trust() -> None:
    assert "resolver" not in render_conf(BOOK, GATE)
    assert "lua_ssl" not in render_conf(BOOK, GATE)
    for url in ("redis://cache:6379/0", "redis+cluster://a:secret@10.0.0.1:1,cache:2", "redis://localhost"):
        assert "resolver 9.9.9.9;" in lines(render_conf(BOOK, replace(GATE, engine=url, resolver="9.9.9.9")))
    for url in ("redis://me:se@cret@10.0.0.7/0", "redis://[fd00::1]:6379/0", "unix:///run/redis.sock"):
        assert "resolver" not in render_conf(BOOK, replace(GATE, engine=url))
    assert "lua_ssl_trusted_certificate" in render_conf(BOOK, replace(GATE, engine="rediss://10.0.0.7/0"))


def test_where_modules_are_built_in_none_is_loaded() -> None:
    assert not any(line.startswith("load_module") for line in lines(render_conf(BOOK, replace(GATE, modules=[]))))
    conf = lines(render_conf(BOOK, replace(GATE, modules=None)))
    assert "# load_module /usr/share/nginx/modules/ngx_http_lua_module.so;" in conf


@pytest.mark.parametrize(
    "backend", ["127.0.0.1:8080", "http://a b", "http://a;", 'http://"', "http://{", "ftp://a"]
)
def test_an_invalid_backend_is_refused(backend: str) -> None:
    with pytest.raises(InvalidRule, match="not a URL such as"):
        render_conf(BOOK, replace(GATE, backend=backend))


@settings(max_examples=30)
@given(books())
def test_every_attribute_is_standard_captured_or_configured(book: Rulebook) -> None:
    assert set(unknown_attributes(book)) <= {"user", "plan", "x", "y"}
    conf = lines(render_conf(book, GATE))
    assert sum(line.startswith("-- ") and " = " in line and "rule" in line for line in conf) == len(
        unknown_attributes(book)
    )


def taken(text: str, folder: Path) -> str:
    """Returns the errors that nginx reports about a configuration."""
    (folder / "nginx.conf").write_text(text)
    line = [str(command("nginx", "nginx")), "-t", "-q", "-p", f"{folder}/", "-c", "nginx.conf"]
    ran = subprocess.run([*line, "-g", f"pid {folder}/pid;"], capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (ran.stderr == ""), ran.stderr
    return ran.stderr


NASTY = "redis://:p{a\"b\\c'd$e;]]--\n@10.0.0.7/0"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"engine": None, "bundle": "/etc/nginx/rules.bundle.json"},
        {"engine": "rediss://cache:6379/0?fallback=local&deadline=50ms", "prefix": "shop", "workers": 3},
        {"engine": NASTY, "bundle": '/tmp/a "b" {c}.json', "command_line": "headgate\nnginx conf {"},
        {"backend": "https://backend.example:8443/base", "listen": 65535},
    ],
    ids=["redis", "shared", "named", "nasty", "backend"],
)
def test_nginx_takes_it(settings: dict[str, object], tmp_path: Path) -> None:
    gate = replace(GATE, modules=_modules(), logs=str(tmp_path), scratch=str(tmp_path), resolver="127.0.0.1")
    gate = replace(gate, package_path=lua_library.package_path(lua_library.folder()), **settings)  # type: ignore[arg-type]
    if "backend.example" in gate.backend:
        gate = replace(gate, backend=gate.backend.replace("backend.example", "127.0.0.1"))
    assert taken(render_conf(BOOK, gate), tmp_path) == ""


def test_lua_reads_quoted_options_unchanged(tmp_path: Path) -> None:
    text = render_conf(BOOK, replace(GATE, engine=NASTY))
    quoted = next(line for line in lines(text) if line.startswith("redis = "))
    ran = subprocess.run(
        ["luajit", "-e", f"local t = {{ {quoted} }} io.write(t.redis)"], capture_output=True, check=True
    )
    assert ran.stdout.decode() == NASTY


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_name_of_a_file_stays_in_its_comment(name: str) -> None:
    text = render_conf(replace(BOOK, source=name), replace(GATE, command_line=f"headgate nginx conf {name}"))
    plain = render_conf(replace(BOOK, source="a"), replace(GATE, command_line="headgate nginx conf a"))
    assert text.splitlines()[3:] == plain.splitlines()[3:]
    assert all(line.startswith("#") for line in text.splitlines()[:3])
