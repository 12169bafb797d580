"""System checks report mistakes in the limits of a Django project, and servers that start without them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.django_project import project
from tests.repo_rules.repository import ROOT

# isort: split
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import path

from headgate.integrations.django import limit

WITHOUT = [each for each in project.MIDDLEWARE if each != project.HEADGATE]
BOOK = {"rules": [{"name": "logn", "limit": "1/s", "when": {"path": "/logn"}}]}


def check_messages(*, deployed: bool = False, **settings: Any) -> list[tuple[str | None, str]]:
    """Returns ids and messages of what the checks find."""
    with override_settings(**settings):
        messages = checks.run_checks(include_deployment_checks=deployed)
        return [(each.id, each.msg) for each in messages if (each.id or "").startswith("headgate")]


def test_a_project_without_mistakes_has_no_messages() -> None:
    assert check_messages(HEADGATE={"limits": ["100/s"], "engine": "redis://127.0.0.1:1"}, deployed=True) == []


@pytest.mark.parametrize(
    ("headgate", "sentence"),
    [
        ({"trusted_proxy": []}, 'HEADGATE has no setting "trusted_proxy". Did you mean "trusted_proxies"?'),
        ({"colour": 1}, 'HEADGATE has no setting "colour". Known: engine, rules'),
        ({"limits": "5/s"}, "HEADGATE[\"limits\"] is a list, not '5/s'."),
        ({"limits": ["5/s", "10/minit"]}, 'HEADGATE["limits"][1]: limit: "10/minit" is not a limit'),
        ({"limits": [{"limt": "5/s"}]}, 'HEADGATE["limits"][0] is "5/s" or '),
        ({"user": "nowhere.user"}, "HEADGATE[\"user\"]: No module named 'nowhere'."),
        ({"user": 5}, 'HEADGATE["user"] is a function or its dotted path, not 5.'),
        ({"enabled": "no"}, "HEADGATE[\"enabled\"] is True or False, not 'no'."),
        ({"headers": "draft-3"}, 'HEADGATE["headers"] is one of draft-11'),
        ({"trusted_proxies": ["localhost"]}, 'The trusted proxies: "localhost" is no network'),
        ({"engine": "rediss"}, '"rediss"'),
        ({"engine": 5}, 'HEADGATE["engine"] is a URL'),
        ({"rules": {"rules": [{"name": "a"}]}}, 'rule "a"'),
        ({"rules": "nowhere.yaml"}, "nowhere.yaml"),
        ([], "HEADGATE is a mapping"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_a_mistake_in_the_setting_is_named_and_stops_a_server(headgate: Any, sentence: str) -> None:
    (identifier, message), *_ = check_messages(HEADGATE=headgate)
    assert identifier == "headgate.E001"
    assert sentence in message
    with override_settings(HEADGATE=headgate), pytest.raises(ImproperlyConfigured) as raised:
        WSGIHandler()
    assert sentence in str(raised.value)


def test_missing_middleware_is_an_error_if_the_project_has_limits() -> None:
    assert check_messages(MIDDLEWARE=WITHOUT, HEADGATE={"limits": ["1/s"]})[0][0] == "headgate.E002"
    assert check_messages(MIDDLEWARE=WITHOUT, HEADGATE={})[0][0] == "headgate.W001"


def test_middleware_before_headgates_is_a_warning() -> None:
    conditional = "django.middleware.http.ConditionalGetMiddleware"
    security = "django.middleware.security.SecurityMiddleware"
    assert check_messages(MIDDLEWARE=[security, *project.MIDDLEWARE]) == []
    ((identifier, message),) = check_messages(MIDDLEWARE=[security, conditional, *project.MIDDLEWARE])
    assert identifier == "headgate.W002"
    assert message.startswith(f"HeadgateMiddleware comes after {conditional}: their own responses are not limited")


def test_a_rule_that_matches_no_route_is_a_warning_or_an_error() -> None:
    ((identifier, message),) = check_messages(HEADGATE={"rules": BOOK})
    assert identifier == "headgate.W003"
    assert 'rule "logn": No route of the application matches its condition' in message
    with (
        override_settings(HEADGATE={"rules": BOOK, "strict": True}),
        pytest.raises(ImproperlyConfigured, match="logn"),
    ):
        WSGIHandler()


def test_the_first_example_of_the_page_has_no_mistakes() -> None:
    page = (ROOT / "docs/how-to/django.md").read_text()
    names: dict[str, Any] = {}
    for source in re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]:
        exec(source, names)

    class ExampleUrls:
        urlpatterns = (path("export", names["export"]), path("search", names["search"]))

    settings = {name: names[name] for name in ("MIDDLEWARE", "HEADGATE")}
    assert "django.contrib.auth" in names["INSTALLED_APPS"]
    assert check_messages(ROOT_URLCONF=ExampleUrls, **settings) == []
    settings["MIDDLEWARE"] = [each for each in names["MIDDLEWARE"] if "Authentication" not in each]
    ((identifier, message),) = check_messages(ROOT_URLCONF=ExampleUrls, **settings)
    assert identifier == "headgate.E003"
    assert message.endswith(
        "nobody supplies the attribute user; write django.contrib.auth.middleware.AuthenticationMiddleware into "
        'MIDDLEWARE, or set HEADGATE["user"], a function of the request.'
    )


def test_a_limit_that_can_never_match_is_an_error_with_route_and_line() -> None:
    @limit("1/s", key="param.id")
    @limit("1/s", key="tenant", missing="deny")
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(str(pk))

    class CheckedUrls:
        urlpatterns = (path("items/<int:pk>", view),)

    messages = check_messages(ROOT_URLCONF=CheckedUrls)
    assert [identifier for identifier, _ in messages] == ["headgate.E003", "headgate.E003"]
    assert f"{Path(__file__).name}:" in messages[0][1]
    assert (
        "of /items/{pk} can never match: the route has no path parameter for param.id, but param.pk"
        in messages[0][1]
    )
    assert "nobody supplies the attribute tenant" in messages[1][1]
    with override_settings(ROOT_URLCONF=CheckedUrls), pytest.raises(ImproperlyConfigured, match="can never match"):
        WSGIHandler()


def test_a_limit_by_user_needs_authentication() -> None:
    middleware = [each for each in project.MIDDLEWARE if "Authentication" not in each]
    messages = check_messages(MIDDLEWARE=middleware)
    assert messages
    assert "nobody supplies the attribute user" in messages[0][1]


def test_memory_in_a_deployment_is_a_warning() -> None:
    assert check_messages(HEADGATE={}, deployed=True)[0][0] == "headgate.W004"
