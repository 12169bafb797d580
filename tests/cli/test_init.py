"""headgate init: what it finds, what it proposes, that the proposal works, and what it writes."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.clock import ManualClock
from headgate.integrations.task_calls import TaskCall
from headgate.integrations.task_limits import PutBack, TaskLimits
from headgate.rules import load
from headgate.rules.rule import Modes, Rulebook
from tests.cli.conftest import Prompt
from tests.cli.init_projects import (
    AIOHTTP,
    ASGI,
    CALLS,
    COMPOSE,
    FASTAPI,
    FLASK,
    NGINX,
    QUART,
    SETTINGS,
    STARLETTE,
    URLS,
    WSGI,
)
from tests.servers import RedisServer

ROOT = Path(__file__).parents[2]
SHADOW = Modes(enforce=0, shadow=10_000)


def project(folder: Path, **files: str) -> Path:
    """A project; the names of its files have __ for / and _dot_ for a dot."""
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def found(document: Any) -> dict[str, str]:
    return {each["where"]: each["what"] for each in document["found"]}


def proposed(prompt: Prompt, folder: Path, *words: str) -> Any:
    return prompt.json("init", str(folder), *words, code=3)


def written(prompt: Prompt, folder: Path) -> Any:
    """Writes the rulebook, and applies the lines that the output shows, as `| git apply` does."""
    assert prompt("init", str(folder), "--yes") == 0, prompt.err
    subprocess.run(["git", "apply"], input=prompt.out, text=True, cwd=folder, check=True, timeout=60)
    assert prompt("rules", "validate", str(folder / "rules.yaml"), "--strict") == 0, prompt.err


def calls(folder: Path, kind: str, path: str = "/api/auth/login", **variables: str) -> list[tuple[int, Any]]:
    """Sends 12 logins to the project's application."""
    (folder / "calls.py").write_text(CALLS)
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}"} | variables
    ran = subprocess.run(
        [sys.executable, "calls.py", kind, path],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return [(status, fields) for status, fields in json.loads(ran.stdout)]


def enforce(folder: Path) -> Rulebook:
    book = folder / "rules.yaml"
    book.write_text(book.read_text().replace("    mode: shadow\n", ""))
    return load.read(book)


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        pytest.param("asgi", FASTAPI, id="fastapi"),
        pytest.param("wsgi", FLASK, id="flask"),
        pytest.param("asgi", STARLETTE, id="starlette"),
        pytest.param("asgi", QUART, id="quart"),
        pytest.param("aiohttp", AIOHTTP, id="aiohttp"),
    ],
)
def test_an_application_with_the_proposed_lines_refuses_the_eleventh_login(
    prompt: Prompt, tmp_path: Path, kind: str, source: str
) -> None:
    folder = project(tmp_path, main_dot_py=source)
    written(prompt, folder)
    enforce(folder)
    answers = calls(folder, kind)
    assert [status for status, _ in answers] == [200] * 10 + [429] * 2
    for _, fields in answers:
        assert '"login";q=10;w=60' in fields["ratelimit-policy"]
        assert "ratelimit" in fields
    assert "retry-after" in answers[-1][1]


@pytest.mark.parametrize(("kind", "source"), [("asgi", ASGI), ("wsgi", WSGI)])
def test_plain_applications_are_wrapped(prompt: Prompt, tmp_path: Path, kind: str, source: str) -> None:
    folder = project(tmp_path, main_dot_py=source)
    written(prompt, folder)
    enforce(folder)
    [*_, (_, fields)] = calls(folder, kind)
    assert fields["ratelimit-policy"] == '"per-address";q=100;w=10'


def test_a_django_project(prompt: Prompt, tmp_path: Path) -> None:
    folder = project(tmp_path, shop__settings_dot_py=SETTINGS, shop__urls_dot_py=URLS)
    written(prompt, folder)
    book = load.read(folder / "rules.yaml")
    assert [rule.name for rule in book.rules] == ["login", "account", "per-user", "per-address"]
    assert "/**/accounts/password_reset" in (folder / "rules.yaml").read_text()
    enforce(folder)
    answers = calls(folder, "django", "/api/auth/login/")
    assert [status for status, _ in answers] == [200] * 10 + [429] * 2
    assert '"per-address"' in answers[0][1]["ratelimit-policy"]


def test_in_shadow_mode_it_counts_in_redis_and_refuses_nobody(
    prompt: Prompt, tmp_path: Path, redis_server: RedisServer
) -> None:
    env = f"# local\nREDIS_URL='{redis_server.url}'  # the cache\n"
    folder = project(tmp_path, main_dot_py=FASTAPI, _dot_env=env)
    written(prompt, folder)
    assert all(rule.mode == SHADOW for rule in load.read(folder / "rules.yaml").rules)
    answers = calls(folder, "asgi", REDIS_URL=redis_server.url)
    assert [status for status, _ in answers] == [200] * 12
    counters = prompt.json("keys", "--engine", redis_server.url, "--rules", str(folder / "rules.yaml"))["keys"]
    assert "login" in {each["name"] for each in counters}  # per-address is full again within 1.2 s, and expires


def test_a_celery_application_gets_its_engine(prompt: Prompt, tmp_path: Path) -> None:
    tasks = "import celery\n\nqueue = celery.Celery('tasks')\n\n\n@queue.task\ndef send(): ...\n"
    folder = project(tmp_path, tasks_dot_py=tasks, compose_dot_yaml=COMPOSE)
    document = proposed(prompt, folder)
    added = [line[1:] for line in document["diff"].splitlines() if line.startswith("+") and "+++" not in line]
    assert added == [
        "from headgate.integrations.celery import rate_limits",
        'rate_limits(queue, "rules.yaml", engine="redis://cache:6379/0")',
    ]
    assert any(step.startswith("tasks.py:3: Limit a task by @limit(") for step in document["steps"])
    assert "pip install 'headgate[celery,redis,yaml]'" in document["steps"]


def test_tasks_alone_get_a_rule_of_tasks(prompt: Prompt, tmp_path: Path) -> None:
    folder = project(tmp_path, tasks_dot_py="import celery\n\napp = celery.Celery('tasks')\n")
    written(prompt, folder)
    book = load.read(folder / "rules.yaml")
    assert [(rule.name, rule.mode) for rule in book.rules] == [("per-task", SHADOW)]
    clock = ManualClock()
    for rules, seconds in ((book, 0.0), (enforce(folder), 0.1)):
        limits = TaskLimits(rules, "memory://", clock=clock)
        calls = [limits.decide(TaskCall("send", queue="mails"), ()) for _ in range(101)]
        late = calls[-1].waiting.at if isinstance(calls[-1], PutBack) else limits.now()
        assert late - limits.now() == pytest.approx(seconds)
        limits.close()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda text: text.replace("\n", "\r\n"), id="lines of Windows"),
        pytest.param(lambda text: "\ufeff" + text, id="byte order mark"),
        pytest.param(lambda text: "\ufeff" + text.replace('"""A shop."""\n\n', ""), id="mark before the import"),
        pytest.param(lambda text: text.rstrip("\n"), id="no newline at the end"),
        pytest.param(lambda text: text.replace("\n\n\n", "\n\x0c\n\n"), id="form feed"),
    ],
)
@pytest.mark.parametrize("source", [FASTAPI, ASGI, SETTINGS, "from fastapi import FastAPI\napp = FastAPI()\n"])
def test_the_lines_fit_a_file_as_it_is(
    prompt: Prompt, tmp_path: Path, source: str, change: Callable[[str], str]
) -> None:
    text = change(source)
    (tmp_path / "settings.py").write_bytes(text.encode())
    written(prompt, tmp_path)
    after = (tmp_path / "settings.py").read_bytes().decode()
    compile(after.removeprefix("\ufeff"), "settings.py", "exec")
    assert "headgate.integrations" in after
    assert after.startswith("\ufeff") == text.startswith("\ufeff")
    assert ("\r\n" in text) == ("\r\n" in after)
    assert after.count("\r\n") in (0, after.count("\n"))


def test_the_lines_fit_a_folder_below_this_one(
    prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path, services__api__main_dot_py=FASTAPI)
    monkeypatch.chdir(tmp_path)
    assert prompt("init", "services/api", "--yes") == 0
    subprocess.run(["git", "apply"], input=prompt.out, text=True, check=True, timeout=60)
    assert "rate_limits(app" in (tmp_path / "services/api/main.py").read_text()


def test_what_is_found_and_where(prompt: Prompt, tmp_path: Path) -> None:
    folder = project(
        tmp_path,
        api__main_dot_py=FASTAPI,
        web__main_dot_py=FLASK,
        tasks_dot_py="import celery\nqueue = celery.Celery('tasks')\n",
        compose_dot_yaml=COMPOSE,
        nginx__nginx_dot_conf=NGINX,
        _dot_venv__lib_dot_py=FASTAPI,
        env__pyvenv_dot_cfg="",
        web__test_main_dot_py=FASTAPI,
    )
    document = proposed(prompt, folder)
    assert found(document) == {
        "tasks.py:2": "Celery",
        "api/main.py:5": "FastAPI application app",
        "web/main.py:5": "Flask application app",
        "api/main.py:14": "POST /**/auth/login",
        "api/main.py:19": "GET /healthz",
        "web/main.py:7": "GET/POST /api/auth/login",
        "compose.yaml:7": 'Valkey, the service "cache": redis://cache:6379/0',
        "nginx/nginx.conf:6": "nginx, which passes requests on to http://web:8000",
        "nginx/nginx.conf:3": "limits of nginx: headgate rules import nginx/nginx.conf translates them",
    }
    assert document["diff"].count("+++ b/") == 3
    networks = 'trusted_proxies=["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]'
    assert f'+rate_limits(app, "rules.yaml", engine="redis://cache:6379/0", {networks})\n' in document["diff"]
    assert f'+    RateLimiter(app, "rules.yaml", engine="redis://cache:6379/0", {networks})\n' in document["diff"]
    steps = "\n".join(document["steps"])
    assert "pip install 'headgate[celery,fastapi,flask,redis,yaml]'" in steps
    assert "2 applications share this rulebook" in steps
    assert "tasks.py:2: rules limit requests" in steps
    assert "nginx/nginx.conf:6: add proxy_set_header X-Forwarded-For $remote_addr;" in steps


@pytest.mark.parametrize(
    ("source", "what", "steps"),
    [
        (
            "http { server { location / { proxy_pass http://web:8000; } } }",
            "passes requests on to http://web:8000",
            1,
        ),
        ("server {\n  location / { uwsgi_pass unix:/app; } # all\n}", "passes requests on to unix:/app", 1),
        (
            "server { location / { proxy_set_header X-Forwarded-For $remote_addr; proxy_pass http://web; } }",
            "passes requests on to http://web",
            0,
        ),
        ("http {}\n# location / { proxy_pass http://web:8000; }", "nginx", 0),
    ],
)
def test_directives_of_nginx_may_share_a_line(
    prompt: Prompt, tmp_path: Path, source: str, what: str, steps: int
) -> None:
    document = proposed(prompt, project(tmp_path, main_dot_py=FASTAPI, nginx_dot_conf=source))
    assert [text for text in found(document).values() if text.endswith(what)]
    assert ("trusted_proxies=" in document["diff"]) == (what != "nginx")
    assert sum("add proxy_set_header" in step for step in document["steps"]) == steps


def test_a_published_port_is_that_of_this_machine(prompt: Prompt, tmp_path: Path) -> None:
    compose = COMPOSE.replace("    build: .\n", "    image: shop\n")
    document = proposed(prompt, project(tmp_path, docker___compose_dot_yml=compose.replace("docker_", "")))
    assert document["found"] == []
    (tmp_path / "docker-compose.yml").write_text(compose)
    assert "redis://localhost:6380/0" in found(proposed(prompt, tmp_path))["docker-compose.yml:7"]


def test_a_password_is_not_printed(prompt: Prompt, tmp_path: Path) -> None:
    env = "export CACHE=redis://:s3cret@redis.example:6379/0\n"
    folder = project(tmp_path, main_dot_py=FASTAPI, _dot_env=env)
    assert prompt("init", str(folder)) == 3
    assert "redis://***@redis.example:6379/0" in prompt.out
    assert 'engine=os.environ["CACHE"]' in prompt.out
    assert "+import os\n" in prompt.out
    (folder / ".env").unlink()
    (folder / "other.py").write_text("URL = 'rediss://ann:s3cret@redis.example:6379/0'\n")
    assert prompt("init", str(folder)) == 3
    assert 'engine=os.environ["HEADGATE_ENGINE"]' in prompt.out
    assert "s3cret" not in prompt.out


def test_a_password_beside_the_lines_to_add_is_not_printed(prompt: Prompt, tmp_path: Path) -> None:
    tasks = "from celery import Celery\n\napp = Celery(broker='redis://:s3cret@redis.example/0')\n"
    folder = project(tmp_path, tasks_dot_py=tasks, main_dot_py=FASTAPI)
    document = proposed(prompt, folder)
    assert "s3cret" not in prompt.out
    assert [step for step in document["steps"] if "by hand" in step] == [
        "tasks.py: add these lines by hand, because the lines around them have a password: import os | "
        "from headgate.integrations.celery import rate_limits | "
        'rate_limits(app, engine=os.environ["HEADGATE_ENGINE"])'
    ]
    written(prompt, folder)
    assert "rate_limits(app" in (folder / "main.py").read_text()


def test_an_application_that_is_limited_gets_no_lines(prompt: Prompt) -> None:
    document = proposed(prompt, ROOT / "examples")
    assert document["diff"] == ""
    assert "FastAPI application app, limited by headgate already" in found(document).values()


def test_a_folder_with_nothing_in_it(prompt: Prompt, tmp_path: Path) -> None:
    assert prompt("init", str(tmp_path), "--yes") == 0
    assert f"Found nothing in {tmp_path}: no application of FastAPI, Flask" in prompt.out
    [rule] = load.read(tmp_path / "rules.yaml").rules
    assert (rule.name, rule.mode) == ("per-address", SHADOW)


def test_a_file_that_exists_is_left_alone(prompt: Prompt, tmp_path: Path) -> None:
    folder = project(tmp_path, main_dot_py=FASTAPI, rules_dot_yaml="rules: [{name: all, limit: 5/s}]\n")
    document = prompt.json("init", str(folder), "--yes")
    assert (document["exists"], document["written"]) == (True, False)
    assert prompt("init", str(folder), "--yes") == 0
    assert "rules.yaml exists, and was left alone: a valid rulebook with 1 rule." in prompt.out
    assert (folder / "rules.yaml").read_text() == "rules: [{name: all, limit: 5/s}]\n"
    (folder / "rules.yaml").write_text("alerts: []\n")
    assert prompt("init", str(folder), "--yes") == 0
    assert "rules.yaml exists, and was left alone. It is no valid rulebook:" in prompt.out
    assert (folder / "rules.yaml").read_text() == "alerts: []\n"


def test_without_a_terminal_and_without_yes_nothing_is_written(prompt: Prompt, tmp_path: Path) -> None:
    folder = project(tmp_path, main_dot_py=FASTAPI)
    assert prompt("init", str(folder)) == 3
    assert "rules.yaml was not written: say --yes to write it" in prompt.out
    assert sorted(path.name for path in folder.iterdir()) == ["main.py"]


@pytest.mark.parametrize(("answer", "code"), [("y\n", 0), ("\n", 3), ("\x04", 3)])
def test_the_question_on_a_terminal(tmp_path: Path, answer: str, code: int) -> None:
    folder = project(tmp_path, main_dot_py=FASTAPI)
    outer, inner = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", "init", str(folder)],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=os.environ | {"NO_COLOR": "1"},
    ) as process:
        os.close(inner)
        shown = b""
        while b"[y/N]" not in shown:
            shown += os.read(outer, 4096)
        os.write(outer, answer.encode())
        try:
            while chunk := os.read(outer, 4096):
                shown += chunk
        except OSError:  # Linux reports the end of a terminal as an error
            pass
        assert process.wait(60) == code, shown.decode()
    os.close(outer)
    assert (folder / "rules.yaml").exists() == (code == 0)
    assert shown.decode().count("per-address") == 1


def test_files_that_cannot_be_read_are_named(prompt: Prompt, tmp_path: Path) -> None:
    folder = project(tmp_path, old_dot_py="print 'hello'\n", main_dot_py=FASTAPI.replace("auth", "authentication"))
    (folder / "latin.py").write_bytes(b"# caf\xe9\n")
    document = proposed(prompt, folder)
    assert document["unreadable"] == ["latin.py", "old.py"]
    assert prompt("init", str(folder)) == 3
    assert "not read, because it is not valid Python: latin.py, old.py" in prompt.out


def test_a_folder_with_too_many_files(prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.cli.project.files.MAX_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.txt").touch()
    assert proposed(prompt, tmp_path)["complete"] is False
    (tmp_path / "3.txt").unlink()
    assert proposed(prompt, tmp_path)["complete"] is True


def test_misuse(prompt: Prompt, tmp_path: Path) -> None:
    assert "missing is no folder" in prompt.failure("init", str(tmp_path / "missing"))
    assert "rules.toml: the rulebook is written as YAML: name it rules.yaml." in prompt.failure(
        "init", str(tmp_path), "--rules", "rules.toml"
    )
    assert "cannot be written: No such file or directory" in prompt.failure(
        "init", str(tmp_path), "--yes", "--rules", "no/rules.yaml"
    )
