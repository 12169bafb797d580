"""The system checks: what `manage.py check` and runserver say about the limits of a project.

headgate.E001   HEADGATE has a mistake: an unknown setting, a limit that cannot be read
headgate.E002   the middleware is missing, but HEADGATE has a rulebook or limits
headgate.E003   a limit of a view can never match
headgate.E004   a throttle of REST framework has no rate, or one that cannot be read
headgate.W001   the middleware is missing, so errors have no header fields
headgate.W002   other middleware comes before HeadgateMiddleware
headgate.W003   a rule of the rulebook matches no route (an error with strict)
headgate.W004   the counts are in the memory of each process (only with --deploy)
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage
from django.utils.module_loading import import_string

from headgate.errors import HeadgateError, InvalidRulebook
from headgate.integrations.django.middleware import HeadgateMiddleware
from headgate.integrations.django.project_limits import MIDDLEWARE, SETTING, ApplicationLimits
from headgate.integrations.django.throttle_mistakes import throttle_mistakes

# These answer hardly ever, and what they add belongs on every response.
_MAY_STAND_BEFORE = ("SecurityMiddleware", "CorsMiddleware", "PrometheusBeforeMiddleware")


def _application() -> tuple[ApplicationLimits | None, str]:
    """Returns what HEADGATE sets up, or None and its mistake."""
    try:
        application = ApplicationLimits(getattr(settings, SETTING, {}))
    except HeadgateError as error:
        return None, str(error)
    return application, ""


def check_middleware(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Checks that the middleware is there, and first."""
    listed = list(settings.MIDDLEWARE)
    position = next((index for index, each in enumerate(listed) if _is_ours(each)), None)
    if position is None:
        application, _ = _application()
        hint = f'Write MIDDLEWARE = ["{MIDDLEWARE}", ...], as the first.'
        if application is None:
            return []
        if application.decides_all:
            what = f"{SETTING} has a rulebook or limits, but HeadgateMiddleware is missing: nothing is limited."
            return [checks.Error(what, hint=hint, id="headgate.E002")]
        if any(route.limits for route in application.routes()):
            what = "MIDDLEWARE lacks HeadgateMiddleware: responses to errors have no fields of the limits."
            return [checks.Warning(what, hint=hint, id="headgate.W001")]
        return []
    before = [each for each in listed[:position] if each.rpartition(".")[2] not in _MAY_STAND_BEFORE]
    if not before:
        return []
    return [
        checks.Warning(
            f"HeadgateMiddleware comes after {', '.join(before)}: their own responses are not limited, and they "
            "may drop or cache the fields of the limits.",
            hint=f'Write "{MIDDLEWARE}" first in MIDDLEWARE.',
            id="headgate.W002",
        )
    ]


def check_limits(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Checks the setting, the rulebook, and the limits of all views."""
    application, mistake = _application()
    if application is None:
        return [checks.Error(mistake, id="headgate.E001")]
    try:
        _ = application.sync.limiter  # reads the rulebook
    except HeadgateError as error:
        messages = error.messages if isinstance(error, InvalidRulebook) else [str(error)]
        return [checks.Error(message, id="headgate.E001") for message in messages]
    level = checks.ERROR if application.sync.strict else checks.WARNING
    application.sync.strict = True  # so that it raises, in place of logging
    try:
        application.sync.check_routes(application.routes())
    except InvalidRulebook as error:
        return [CheckMessage(level, message, id="headgate.W003") for message in error.messages]
    except HeadgateError as error:
        return [checks.Error(message, id="headgate.E003") for message in str(error).splitlines()]
    finally:
        application.close()
    return []


def check_throttles(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Checks the rates of headgate's throttles."""
    return [checks.Error(mistake, id="headgate.E004") for mistake in throttle_mistakes()]


def check_deployment(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Checks, for a deployment, that all processes count together."""
    application, _ = _application()
    if application is None or not application.in_memory:
        return []
    return [
        checks.Warning(
            "The counts are in the memory of each process: four workers admit four times the limit.",
            hint=f'Set {SETTING}["engine"], such as redis://localhost:6379/0.',
            id="headgate.W004",
        )
    ]


def _is_ours(path: str) -> bool:
    try:
        found = import_string(path)
    except ImportError:  # Django says so itself
        return False
    return isinstance(found, type) and issubclass(found, HeadgateMiddleware)
