"""headgate doctor: rules that decide nothing, clients that share a key, applications, and bad input."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headgate import Counts, Limiter
from headgate.operations.finding import ERROR, OK, WARNING
from headgate.telemetry.decision_log import DecisionLog
from tests.cli.conftest import Prompt
from tests.cli.doctor_harness import BOOK, Found, examined
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]


def decide(log: Path, addresses: list[str], calls: int, shared_at: str | None = None) -> Path:
    """A program whose rule counts by address; it logs, and shares, what it decided. Returns its rulebook."""
    book = log.parent / "rules.yaml"
    book.write_text(BOOK)
    observers = [DecisionLog(str(log)), *([] if shared_at is None else [Counts(shared_at=shared_at)])]
    with Limiter.from_rules(str(book), observers=observers) as limiter:
        for number in range(calls):
            limiter.check({"path": "/search", "address": addresses[number % len(addresses)]})
    return book


def test_all_clients_behind_a_proxy_in_a_log(prompt: Prompt, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    book = decide(log, ["10.0.0.5"], 150)
    findings = examined(prompt, "--log", str(log), "--rules", str(book), code=3)
    assert findings["shared key"]["change"] == 'trusted_proxies=["10.0.0.5"]'
    assert "150 of 150 calls" in findings["shared key"]["message"]
    assert findings["unused rule"]["where"] == f"{book}:8"
    assert findings["unused rule"]["change"] == "when: {path: /export}"
    assert '"export" decided no call' in findings["unused rule"]["message"]


def test_a_rule_in_shadow_mode_is_seen_too(prompt: Prompt, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    rule = {"name": "all", "key": "address", "missing": "skip", "limit": "9/s", "mode": "shadow"}
    with Limiter.from_rules({"rules": [rule]}, observers=[DecisionLog(str(log))]) as limiter:
        for _ in range(120):
            limiter.check({"address": "192.168.1.2"})
    assert examined(prompt, "--log", str(log), code=3)["shared key"]["level"] == ERROR


def test_all_clients_behind_a_proxy_in_the_counts(
    prompt: Prompt, tmp_path: Path, redis_server: RedisServer
) -> None:
    book = decide(tmp_path / "log", ["10.0.0.5"], 150, redis_server.url)
    findings = examined(prompt, "--engine", redis_server.url, "--rules", str(book), code=3)
    assert findings["shared key"]["change"] == 'trusted_proxies=["10.0.0.5"]'
    assert '"export" decided no call' in findings["unused rule"]["message"]


def test_a_proxy_with_public_addresses(prompt: Prompt, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    decide(log, ["203.0.113.1", "203.0.113.2"], 1200)
    finding = examined(prompt, "--log", str(log))["shared key"]
    assert finding["level"] == WARNING
    assert finding["change"] == 'trusted_proxies=["203.0.113.1", "203.0.113.2"]'


def test_clients_with_different_addresses(prompt: Prompt, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    decide(log, [f"198.51.100.{number}" for number in range(50)], 2000)
    findings = examined(prompt, "--log", str(log))
    assert "shared key" not in findings
    assert findings["shared keys"]["level"] == OK


def test_few_calls_prove_nothing(prompt: Prompt, tmp_path: Path) -> None:
    log = tmp_path / "decisions.jsonl"
    decide(log, ["10.0.0.5"], 99)
    assert "shared key" not in examined(prompt, "--log", str(log))


def test_one_user_for_all(prompt: Prompt, tmp_path: Path) -> None:
    log, book = tmp_path / "decisions.jsonl", tmp_path / "rules.yaml"
    book.write_text(BOOK)
    with Limiter.from_rules(str(book), observers=[DecisionLog(str(log))]) as limiter:
        for _ in range(1000):
            limiter.check({"path": "/export", "user": "anonymous"})
    finding = examined(prompt, "--log", str(log), "--rules", str(book))["shared key"]
    assert (finding["level"], finding["where"]) == (WARNING, f"{book}:7")
    assert "user=anonymous" in finding["message"]


def test_a_rulebook_that_is_invalid(prompt: Prompt, tmp_path: Path) -> None:
    book = tmp_path / "rules.yaml"
    book.write_text(BOOK.replace("100/minute", "100/minit"))
    finding = examined(prompt, "--rules", str(book), code=2)["rulebook"]
    assert finding["where"] == f"{book}:6"
    assert "Did you mean 100/minute?" in finding["message"]


def test_a_rulebook_that_is_not_there(prompt: Prompt) -> None:
    finding = examined(prompt, "--rules", "missing.yaml", code=2)["rulebook"]
    assert (finding["where"], finding["change"]) == ("missing.yaml", "--rules FILE")


def test_a_rule_that_is_off_and_a_misspelled_attribute(prompt: Prompt, tmp_path: Path) -> None:
    book = tmp_path / "rules.yaml"
    book.write_text(BOOK.replace("    key: address\n", "    key: ip\n    mode: off\n"))
    findings = examined(prompt, "--rules", str(book))
    assert (findings["unused rule"]["change"], findings["unused rule"]["where"]) == ("mode: shadow", f"{book}:2")
    assert '"ip"' in findings["rulebook"]["message"]
    book.write_text("rules: []\n")
    assert "no rules" in examined(prompt, "--rules", str(book))["rulebook"]["message"]


FASTAPI = """\
from fastapi import FastAPI
from headgate.integrations.fastapi import rate_limits
app = FastAPI()
rate_limits(app, "rules.yaml", "memory://")

@app.get("/search")
def search(): ...

bare = FastAPI()
"""
FLASK = """\
from flask import Flask
from headgate.integrations.flask import RateLimiter

def create_app():
    app = Flask(__name__)
    RateLimiter(app, rules="rules.yaml", engine="memory://")
    app.add_url_rule("/search", "search", lambda: "")
    return app
"""
AIOHTTP = """\
from aiohttp import web
from headgate.integrations.aiohttp import rate_limits

async def search(request): return web.Response()

app = web.Application()
app.router.add_get("/search", search)
rate_limits(app, "rules.yaml", "memory://")
"""
DJANGO = """\
import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=["headgate.integrations.django.HeadgateMiddleware"],
    HEADGATE={"rules": "rules.yaml", "engine": "memory://"},
)
urlpatterns = [path("search", lambda request: None)]
application = get_wsgi_application()
"""


def run_in(folder: Path, *words: str) -> tuple[int, dict[str, Found]]:
    """Runs doctor in a process of its own, in a folder with an application."""
    ran = subprocess.run(
        [sys.executable, "-m", "headgate", "doctor", *words, "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout, ran.stderr
    return ran.returncode, {finding["check"]: finding for finding in json.loads(ran.stdout)["findings"]}


@pytest.mark.parametrize(
    ("text", "app", "setting"),
    [
        (FASTAPI, "main:app", 'rate_limits(app, ..., trusted_proxies=["10.0.0.5"])'),
        (FLASK, "main:create_app()", 'RateLimiter(app, ..., trusted_proxies=["10.0.0.5"])'),
        (AIOHTTP, "main:app", 'rate_limits(app, ..., trusted_proxies=["10.0.0.5"])'),
        (DJANGO, "main:application", 'HEADGATE = {..., "trusted_proxies": ["10.0.0.5"]}'),
    ],
    ids=["fastapi", "flask", "aiohttp", "django"],
)
def test_an_application(tmp_path: Path, text: str, app: str, setting: str) -> None:
    """The engine and the rulebook are those of the application, and the line is the one of its framework."""
    decide(tmp_path / "decisions.jsonl", ["10.0.0.5"], 150)
    (tmp_path / "main.py").write_text(text)
    code, findings = run_in(tmp_path, "--app", app, "--log", "decisions.jsonl")
    assert code == 3
    assert findings["engine"]["level"] == WARNING
    assert findings["application"]["level"] == OK
    assert findings["unmatched rule"]["where"] == "rules.yaml:8"
    assert findings["unmatched rule"]["message"] == f'The rule "export" matches no route of {app}.'
    assert findings["shared key"]["change"] == setting


def test_an_application_without_limits(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(BOOK)
    (tmp_path / "main.py").write_text(FASTAPI)
    code, findings = run_in(tmp_path, "--app", "main:bare")
    assert code == 0
    assert findings["application"]["change"] == 'rate_limits(app, "rules.yaml", "redis://localhost:6379/0")'


def test_a_module_that_fails(prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doctors_broken_module.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sentence = prompt.failure("doctor", "--app", "doctors_broken_module:app")
    assert sentence == "doctors_broken_module cannot be imported: ZeroDivisionError: division by zero."
    (tmp_path / "doctors_leaving_module.py").write_text("raise SystemExit(0)\n")
    sentence = prompt.failure("doctor", "--app", "doctors_leaving_module:app")
    assert sentence == "doctors_leaving_module cannot be imported: SystemExit: 0."


def test_nothing_to_check(prompt: Prompt) -> None:
    assert "There is nothing to check." in prompt.failure("doctor")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--engine", "rediss//host"), "rediss//host"),
        (("--engine", "redis://127.0.0.1:1?fallbak=local"), "fallback"),
        (("--log", "missing.jsonl"), "missing.jsonl cannot be read"),
        (("--app", "main"), "MODULE:NAME"),
        (("--app", "no_such_module_here:app"), "There is no module no_such_module_here"),
        (("--app", "json:nothing"), '"nothing" is not in json'),
        (("--app", "json:dumps"), "not an application of FastAPI, Flask, Django or aiohttp"),
    ],
)
def test_bad_input(prompt: Prompt, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in prompt.failure("doctor", *words)


def test_a_log_that_is_no_decision_log(prompt: Prompt, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text('192.0.2.7 - - [16/Nov/2026:03:49:04 +0000] "GET / HTTP/1.1" 200 5\n' * 3)
    assert "is not a decision log: 0 of its 3 lines" in prompt.failure("doctor", "--log", str(log))
    log.write_text("")
    assert "is not a decision log" in prompt.failure("doctor", "--log", str(log))
