"""A shop in Django and Django REST framework, in one file: limits of the project, of views and of an API.

    pip install 'headgate[drf]'
    python examples/django_app.py check
    python examples/django_app.py runserver
    curl -i localhost:8000/items/7

Without ENGINE it counts in memory, which is right for one process. For several:

    ENGINE=redis://localhost:6379/0 gunicorn --workers 4 examples.django_app:wsgi
    ENGINE=redis://localhost:6379/0 uvicorn --workers 4 examples.django_app:asgi
"""

from __future__ import annotations

import os
import sys
from typing import Any

import django
from django.conf import settings

settings.configure(
    DEBUG=False,
    SECRET_KEY=os.environ.get("SECRET_KEY", "for the example only"),
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "headgate.integrations.django"],
    MIDDLEWARE=[
        "headgate.integrations.django.HeadgateMiddleware",  # first
        "django.middleware.common.CommonMiddleware",
    ],
    HEADGATE={
        "engine": os.environ.get("ENGINE", "memory://"),
        "limits": ["100/minute"],  # all requests of one client
        "user": lambda request: request.headers.get("x-user"),  # leave it out to count by request.user
        "trusted_proxies": ["10.0.0.0/8"],
        "exempt": ["/static/**"],
    },
    REST_FRAMEWORK={
        "DEFAULT_AUTHENTICATION_CLASSES": [],
        "DEFAULT_THROTTLE_CLASSES": ["headgate.integrations.drf.AnonRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "20/min"},
    },
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.views import View  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from headgate.integrations.django import exempt, limit  # noqa: E402
from headgate.integrations.drf import throttle  # noqa: E402


@limit("20/minute")
def show(request: HttpRequest, item: int) -> HttpResponse:
    return JsonResponse({"item": item})


@limit("3/minute; 50/day", key=["user", "param.item"], missing="deny")
async def order(request: HttpRequest, item: int) -> HttpResponse:
    return JsonResponse({"order": f"item {item}"})


@limit("5/hour", when={"method": "POST"}, refund="2xx")  # only failures count
def login(request: HttpRequest) -> HttpResponse:
    if request.GET.get("password") != "open sesame":
        return JsonResponse({"detail": "Wrong password."}, status=401)
    return JsonResponse({"token": "..."})


@limit("2/s burst 5")
class SearchView(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return JsonResponse({"found": []})


@exempt
def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


class Prices(APIView):
    """Has the default throttle of the settings."""

    def get(self, request: Any) -> Response:
        return Response({"price": 7})


class Reports(APIView):
    """Has a throttle of its own: a bucket."""

    throttle_classes = (throttle("1/minute burst 3", key="address"),)

    def get(self, request: Any) -> Response:
        return Response({"report": "..."})


urlpatterns = [
    path("items/<int:item>", show),
    path("items/<int:item>/orders", order),
    path("login", login),
    path("search", SearchView.as_view()),
    path("health", health),
    path("api/prices", Prices.as_view()),
    path("api/reports", Reports.as_view()),
]

if __name__ == "__main__":
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)
else:
    wsgi, asgi = get_wsgi_application(), get_asgi_application()
