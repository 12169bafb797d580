"""The views of Django REST framework, under /api/."""

from __future__ import annotations

from typing import Any

from django.urls import path
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import NotFound
from rest_framework.response import Response
from rest_framework.views import APIView

from headgate.integrations.drf import (
    AnonRateThrottle,
    ScopedRateThrottle,
    SimpleRateThrottle,
    UserRateThrottle,
    throttle,
)


class MiddlewareUser(BaseAuthentication):
    """Takes over the user whom the middleware has logged in."""

    def authenticate(self, request: Any) -> Any:
        user = request._request.user
        return (user, None) if user.is_authenticated else None


class ThrottledView(APIView):
    authentication_classes = (MiddlewareUser,)

    def get(self, request: Any) -> Response:
        if "missing" in request.query_params:
            raise NotFound
        return Response({"user": str(request.user.pk)})


class AnonView(ThrottledView):
    throttle_classes = (AnonRateThrottle,)


class UserView(ThrottledView):
    throttle_classes = (UserRateThrottle,)


class UploadsView(ThrottledView):
    throttle_classes = (ScopedRateThrottle,)
    throttle_scope = "uploads"


class UnscopedView(ThrottledView):
    throttle_classes = (ScopedRateThrottle,)


class MisspeltView(ThrottledView):
    throttle_classes = (ScopedRateThrottle,)
    throttle_scope = "upload"


class TenantThrottle(SimpleRateThrottle):
    rate = "2/min"

    def get_cache_key(self, request: Any, view: Any) -> str | None:
        tenant: str | None = request.query_params.get("tenant")
        return tenant


class TenantView(ThrottledView):
    throttle_classes = (TenantThrottle,)


class TwoThrottlesView(ThrottledView):
    """The first refuses before the second: a refused request must not count in either."""

    throttle_classes = (throttle("1/minute"), throttle("3/minute", key=None))


class FailuresView(ThrottledView):
    throttle_classes = (throttle("1/minute", key="address", refund="2xx"),)


class RaceView(ThrottledView):
    throttle_classes = (throttle("20/hour log", key=None),)


urlpatterns = [
    path("anon", AnonView.as_view()),
    path("user", UserView.as_view()),
    path("uploads", UploadsView.as_view()),
    path("unscoped", UnscopedView.as_view()),
    path("tenant", TenantView.as_view()),
    path("two", TwoThrottlesView.as_view()),
    path("failures", FailuresView.as_view()),
    path("race", RaceView.as_view()),
]
