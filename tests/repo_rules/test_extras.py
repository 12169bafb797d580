"""A package that is not installed is one sentence, everywhere: what needs it, and what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headgate import HeadgateError, MissingExtra
from headgate.extras import require
from tests.repo_rules.repository import ROOT

REDIS = "The Redis engine needs redis and hiredis: pip install 'headgate[redis]'."
YAML = "A rulebook in YAML needs PyYAML: pip install 'headgate[yaml]'. TOML and JSON are read without it."
CLIENT = "headgate.client needs httpx: pip install 'headgate[client]'."
DJANGO = "headgate.integrations.django needs Django: pip install 'headgate[django]'."
DRF = "headgate.integrations.drf needs Django and djangorestframework: pip install 'headgate[drf]'."
FASTAPI = "headgate.integrations.fastapi needs fastapi: pip install 'headgate[fastapi]'."
FLASK = "headgate.integrations.flask needs flask: pip install 'headgate[flask]'."
AIOHTTP = "headgate.integrations.aiohttp needs aiohttp: pip install 'headgate[aiohttp]'."
GRPC = "headgate.integrations.grpc needs grpcio: pip install 'headgate[grpc]'."
MCP = "headgate.integrations.mcp needs mcp: pip install 'headgate[mcp]'."
FASTMCP = "headgate.integrations.fastmcp needs fastmcp: pip install 'headgate[fastmcp]'."
HTTPX = "headgate.integrations.httpx needs httpx: pip install 'headgate[httpx]'."
REQUESTS = "headgate.integrations.requests needs requests: pip install 'headgate[requests]'."
CELERY = "headgate.integrations.celery needs celery: pip install 'headgate[celery]'."
DRAMATIQ = "headgate.integrations.dramatiq needs dramatiq: pip install 'headgate[dramatiq]'."
SERVICE = "headgate serve needs granian, msgspec and prometheus-client: pip install 'headgate[service]'."

ENTRANCES = {
    "redis": ("from headgate import Limiter; Limiter('3/s', 'redis://127.0.0.1:1')", REDIS),
    "redis awaited": ("from headgate import AsyncLimiter; AsyncLimiter('3/s', 'valkey://127.0.0.1:1')", REDIS),
    "cluster": ("from headgate import open_engine; open_engine('redis+cluster://127.0.0.1:1')", REDIS),
    "pushed rules": ("from headgate import Limiter; Limiter.from_rules('redis://127.0.0.1:1')", REDIS),
    "yaml": ("from headgate.rules import load; load.parse('rules: []', format='yaml')", YAML),
    "yaml file": ("from headgate import Limiter; Limiter.from_rules('RULES')", YAML),
    "client": ("import headgate.client", CLIENT),
    "flask": ("import headgate.integrations.flask", FLASK),
    "django": ("import headgate.integrations.django", DJANGO),
    "drf": ("import headgate.integrations.drf", DRF),
    "fastapi": ("import headgate.integrations.fastapi", FASTAPI),
    "aiohttp": ("import headgate.integrations.aiohttp", AIOHTTP),
    "grpc": ("import headgate.integrations.grpc", GRPC),
    "mcp": ("import headgate.integrations.mcp", MCP),
    "fastmcp": ("import headgate.integrations.fastmcp", FASTMCP),
    "httpx": ("import headgate.integrations.httpx", HTTPX),
    "requests": ("import headgate.integrations.requests", REQUESTS),
    "celery": ("import headgate.integrations.celery", CELERY),
    "dramatiq": ("import headgate.integrations.dramatiq", DRAMATIQ),
}
COMMANDS = {
    "take": (["take", "ann", "--limit", "3/s", "--engine", "redis://127.0.0.1:1"], REDIS),
    "rules": (["rules", "validate", "RULES"], YAML),
    "rules push": (["rules", "push", "RULES", "--engine", "redis://127.0.0.1:1"], YAML),
    "serve": (["serve"], SERVICE),
    "serve json": (["serve", "--json"], SERVICE),
}

# -I and -S leave everything out that is not the standard library.
BARE = [sys.executable, "-I", "-S", "-c"]
PATH = "import sys; sys.path.insert(0, 'src')\n"
CAUGHT = """
from headgate import HeadgateError
try:
    exec(sys.argv[1])
except ImportError as error:
    assert isinstance(error, HeadgateError), error
    assert type(error).__name__ == "MissingExtra"
    print(error)
"""


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("rules") / "rules.yaml"
    path.write_text("rules:\n  - {name: all, limit: 3/s}\n")
    return str(path)


def ran(program: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*BARE, PATH + program, *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_the_library_says_what_to_install(entrance: str, rules: str) -> None:
    program, sentence = ENTRANCES[entrance]
    done = ran(CAUGHT, program.replace("RULES", rules))
    assert (done.stdout.strip(), done.stderr) == (sentence, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_says_what_to_install(command: str, rules: str) -> None:
    words, sentence = COMMANDS[command]
    done = ran(
        "from headgate.cli import main; sys.exit(main(sys.argv[1:]))",
        *(rules if word == "RULES" else word for word in words),
    )
    expected = f'{{"error": "{sentence}"}}' if "--json" in words else f"headgate: {sentence}"
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", expected)


def test_only_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hiredis", None)
    with pytest.raises(MissingExtra, match=r"^The Redis engine needs hiredis: pip") as raised:
        require("The Redis engine", "redis", "redis", "hiredis")
    assert raised.value.name == "hiredis"
    assert issubclass(MissingExtra, HeadgateError)
    require("Anything", "redis", "redis", "json")
