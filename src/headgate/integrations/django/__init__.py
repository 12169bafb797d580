"""Limits a Django project: per view, for the whole project, or by a rulebook; sync and async, WSGI and ASGI.

    INSTALLED_APPS = ["headgate.integrations.django", ...]                        # the system checks
    MIDDLEWARE = ["headgate.integrations.django.HeadgateMiddleware", ...]         # first
    HEADGATE = {"engine": "redis://localhost:6379/0", "rules": "rules.yaml", "limits": ["1000/hour"]}

    @limit("5/minute", key="user", missing="deny")
    def export(request): ...

    @limit("5/minute", when={"method": "POST"}, refund="2xx, 3xx")      # counts failures only
    async def login(request): ...

The middleware decides the rulebook, the limits of the project and those of the view together, after all other
middleware has seen the request, so that the user is known; and it adds the header fields outside of all others, so
that every response to a request that a limit decided has them. Requests that never reach a view (404, a redirect
or a cached page of another middleware) are decided when their response is there.
request.headgate is the RequestRecord.

Functions (user, attributes, key, cost, exempt) receive the HttpRequest. They may be coroutines in sync
projects, too; in async views one that is no coroutine runs in a thread, since it may use the database.

    apps            the app for INSTALLED_APPS
    project_limits  ApplicationLimits: what HEADGATE sets up; settings by name
    checks          the system checks
    client_keys     client_address, user_or_address
    http_requests   requests and routes, as headgate describes them
    middleware      HeadgateMiddleware
    request_state   what one request carries through middleware and view
    streams         counts the bytes of a response that is a stream
    throttle_mistakes    finds mistakes in throttles of REST framework
    view_limit      limit
    view_marks      exempt; what decorators have marked views with
"""

from headgate.extras import require

require("headgate.integrations.django", "django", "django")

from headgate.integrations.django.client_keys import client_address, user_or_address  # noqa: E402
from headgate.integrations.django.middleware import HeadgateMiddleware  # noqa: E402
from headgate.integrations.django.project_limits import application_limits  # noqa: E402
from headgate.integrations.django.view_limit import ViewLimit  # noqa: E402
from headgate.integrations.django.view_marks import exempt  # noqa: E402

limit = ViewLimit

__all__ = [
    "application_limits", "client_address", "exempt", "HeadgateMiddleware", "limit", "user_or_address",
    "ViewLimit",
]  # fmt: skip
