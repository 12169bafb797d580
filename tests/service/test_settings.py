"""Settings: which source wins, which values are refused with which sentence, and that no secret is printed."""

import logging
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import InvalidSetting
from headgate.service import log_format
from headgate.service.settings import Address, Settings, flag_name, read_settings, settings_table

TOKEN = "0123456789abcdef-token"
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "service-settings.md"


def serve(*words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`headgate serve` that is expected to end by itself."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    return subprocess.run(
        [sys.executable, "-m", "headgate.cli", "serve", *words],
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_flag_is_stronger_than_the_environment_and_that_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text('batch = 7\nbody = 2048\nlog = "json"\ntrusted = ["10.0.0.0/8", "::1"]\nadmin = false\n')
    settings = read_settings(
        {"batch": "9", "log": None}, {"HEADGATE_BATCH": "8", "HEADGATE_BODY": "4096"}, str(file)
    )
    assert (settings.batch, settings.body, settings.log) == (9, 4096, "json")
    assert settings.admin is None
    assert settings.trusted == read_settings({"trusted": "10.0.0.0/8,::1"}, {}).trusted
    assert read_settings({}, {"HEADGATE_CONFIG": str(file)}).batch == 7
    assert read_settings({}, {}) == Settings()


@pytest.mark.parametrize("name", ["admin_token", "secret", "engine"])
def test_secrets_may_stand_in_files(name: str, tmp_path: Path) -> None:
    file = tmp_path / "it"
    value = "memory://" if name == "engine" else TOKEN
    file.write_text(f"{value}\n")
    variable = f"HEADGATE_{name.upper()}"
    assert getattr(read_settings({}, {f"{variable}_FILE": str(file)}), name) == value
    with pytest.raises(InvalidSetting, match=f"{variable} and {variable}_FILE are both set"):
        read_settings({}, {variable: value, f"{variable}_FILE": str(file)})
    file.write_text(" \n")
    with pytest.raises(InvalidSetting, match=f"^{variable}_FILE: .* is empty"):
        read_settings({}, {f"{variable}_FILE": str(file)})
    with pytest.raises(InvalidSetting, match=f"^{variable}_FILE: .* cannot be read: No such file"):
        read_settings({}, {f"{variable}_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [("WORKRES", "WORKERS"), ("LOGLEVEL", "LOG_LEVEL"), ("TLS_KEY_FILE", "TLS_KEY"), ("RULES_FILE", "RULES")],
)
def test_a_variable_that_is_nearly_ours_is_a_mistake(variable: str, meant: str, tmp_path: Path) -> None:
    private = tmp_path / "key"
    private.write_text("PRIVATE")
    with pytest.raises(InvalidSetting, match=rf"Did you mean HEADGATE_{meant}\?") as error:
        read_settings({}, {f"HEADGATE_{variable}": str(private)})
    assert "PRIVATE" not in str(error.value)


def test_variables_of_others_are_left_alone() -> None:
    kubernetes = (
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_HTTP",
        "PORT",
        "PORT_8080_TCP",
        "PORT_8080_TCP_ADDR",
    )
    others = {f"HEADGATE_{name}{each}": "x" for name in ("", "ADMIN_", "HTTP_", "GRPC_") for each in kubernetes}
    assert read_settings({}, others | {"HEADGATE_VENV_LOCKED": "1", "HTTP": "x"}) == Settings()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("\nworkres = 2\n", r':2: "workres" is not a setting. Did you mean workers\?'),
        ("zzz = 2\n", r':1: "zzz" is not a setting. Known are rules, engine'),
        ("[http]\nport = 1\n", r":1: http is a text, a number or a list of texts"),
        ("workers = true\n", r":1: workers is a text, a number"),
        ("workers = \n", r"\.toml:1: This is not TOML: invalid value\.$"),
        ("batch = 1\nworkers = [2\n", r"\.toml:3: This is not TOML: unclosed array\.$"),
        ("batch = " + "1" * 5000, r"\.toml:1: This is not TOML: a number is too long\.$"),
        ("batch = 0\n", r":1: a whole number from 1 to 10000 was expected, not '0'"),
        ("drain = '0s'\n", r":1: a length of time, such as 10s"),
        ("own_limit = '5/minit'\n", r':1: "5/minit" is not a limit'),
        ("own_limit = '5 slots'\n", r":1: a limit of calls, such as 10000/s, or off was expected"),
        ("log = 'xml'\n", r":1: text or json was expected, not 'xml'"),
        ("http = '8080'\n", r":1: HOST:PORT, such as 127.0.0.1:8080"),
        ("http = '127.0.0.1:0'\n", r":1: HOST:PORT"),
        ("http = 'h:65536'\n", r":1: HOST:PORT"),
        ("tls_cert = 'nowhere.pem'\n", r":1: a file that is there was expected, not 'nowhere.pem'"),
        ("trusted = '10.0.0.0/33'\n", r':1: .*"10.0.0.0/33" is no network: write [^.]*[^w]*$'),
    ],
)
def test_an_invalid_setting_is_reported_with_its_line(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text(text)
    with pytest.raises(InvalidSetting, match=sentence) as error:
        read_settings({}, {}, str(file))
    assert str(error.value).startswith(str(file))


def test_an_unreadable_settings_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="cannot be read: No such file"):
        read_settings({}, {}, str(tmp_path / "none.toml"))
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidSetting, match="is not UTF-8"):
        read_settings({}, {}, str(tmp_path / "bytes.toml"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"workers": "2"}, "2 workers would let 2 times the limit pass"),
        ({"admin": ":8082"}, r"admin listens at 0\.0\.0\.0:8082, which can be reached from outside"),
        ({"admin": "[::]:8082"}, r"admin listens at \[::\]:8082"),
        ({"admin": "example.org:8082"}, "can be reached from outside"),
        ({"admin_token": "short"}, "admin_token is shorter than 16 characters"),
        ({"secret": "short"}, "secret is shorter than 16 characters"),
        ({"tls_cert": __file__}, "tls_cert and tls_key belong together"),
        ({"tls_key": __file__}, "tls_cert and tls_key belong together"),
        ({"tls_client_ca": __file__}, "tls_client_ca has no effect without"),
        ({"http": "off", "grpc": "off", "admin": "off"}, "http, grpc and admin are all off"),
        ({"http": "127.0.0.1:8081"}, "127.0.0.1:8081 and 127.0.0.1:8081 overlap"),
        ({"http": ":8081"}, "0.0.0.0:8081 and 127.0.0.1:8081 overlap"),
        ({"http": "unix:/a", "grpc": "unix:/a"}, "unix:/a and unix:/a overlap"),
    ],
)
def test_unsafe_settings_are_refused(flags: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidSetting, match=sentence):
        read_settings(flags, {})


@pytest.mark.parametrize(
    "flags",
    [
        {"workers": "2", "engine": "redis://h/0"},
        {"admin": ":8082", "admin_token": TOKEN},
        {"admin": "localhost:8082"},
        {"admin": "[::1]:8082"},
        {"admin": "unix:/tmp/a"},
        {"http": "unix:/a", "grpc": "unix:/b"},
        {"http": "10.0.0.1:8081"},
        {"secret": TOKEN},
    ],
)
def test_safe_settings_are_accepted(flags: dict[str, str]) -> None:
    read_settings(flags, {})


def test_addresses_are_printed_as_written() -> None:
    assert str(read_settings({"http": "[::1]:80"}, {}).http) == "[::1]:80"
    assert read_settings({"http": ":80"}, {}).http == Address("0.0.0.0", 80)
    assert str(read_settings({"http": "unix:/run/h"}, {}).http) == "unix:/run/h"


@pytest.mark.parametrize(
    "engine",
    [
        "redis://:hunter2hunter2@h:6379/0",
        "redis://ann:hunter2@hunter2@h/0",
        "redis://ann:hunter2/hunter2@h/0",
        "redis://h/0?password=hunter2&fallback=local",
    ],
)
def test_no_secret_is_printed(engine: str) -> None:
    settings = read_settings({"engine": engine, "admin_token": f"{TOKEN}hunter2", "secret": f"{TOKEN}hunter2"}, {})
    printed = f"{settings!r} {settings} {settings.engine_without_password} {settings.public_values()}"
    assert "hunter2" not in printed
    assert TOKEN not in printed
    assert settings.engine_without_password.startswith("redis://h")
    for name in ("admin_token", "secret"):
        with pytest.raises(InvalidSetting) as error:
            read_settings({name: "hunter2"}, {})
        assert "hunter2" not in str(error.value)


def test_a_service_that_cannot_start_says_why_and_ends_with_2(tmp_path: Path) -> None:
    book = tmp_path / "rules.yaml"
    book.write_text("rules:\n  - {name: login, limit: 5/minit}\n")
    off = ("--grpc", "off", "--admin", "off")
    broken = serve("--rules", str(book), *off)
    assert broken.returncode == 2
    assert f'{book}:2: rule "login": "5/minit" is not a limit' in broken.stderr
    ended = serve("--engine", "redis://:hunter2hunter2@127.0.0.1:abc/0", *off)
    assert ended.returncode == 2
    assert "hunter2" not in ended.stdout + ended.stderr
    assert serve(HEADGATE_WORKERS="2").returncode == 2


def test_help_names_every_setting_with_its_default() -> None:
    help_text = " ".join(serve("--help").stdout.split())
    for each in settings_table():
        assert f"{flag_name(each.name)} {each.metavar} {each.about}" in help_text
        assert not each.default or f"{each.about} ({each.default})" in help_text


def test_log_lines_are_lines_whatever_was_sent() -> None:
    record: dict[str, Any] = {"msg": "asked for %s", "args": ("/a\nb\x1b[31m\u2028c",), "levelname": "INFO"}
    line = log_format.TextFormatter().format(logging.makeLogRecord(record | {"workers": 2}))
    assert re.fullmatch(r"[0-9T:.-]+Z info asked for /a\\nb\\x1b\[31m\\x2028c workers=2", line)
    document = log_format.JsonFormatter().format(logging.makeLogRecord(record))
    assert len(document.splitlines()) == 1


def reference() -> str:
    """The table of the page, as it must be."""
    rows = ["| setting | flag | variable | default | |", "|---|---|---|---|---|"]
    for each in settings_table():
        default = f"`{each.default}`" if each.default else ""
        variable = f"`HEADGATE_{each.name.upper()}`"
        rows.append(
            f"| `{each.name}` | `{flag_name(each.name)} {each.metavar}` | {variable} | {default} | {each.about} |"
        )
    return "\n".join(rows)


def test_the_reference_is_this_table() -> None:
    assert reference() in REFERENCE.read_text("utf-8")
    assert len(settings_table()) == len(fields(Settings))
