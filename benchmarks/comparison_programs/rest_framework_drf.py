import os

import django
from django.conf import settings
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth"],
    CACHES={
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": os.environ["REDIS_URL"]}
    },
    REST_FRAMEWORK={
        "DEFAULT_THROTTLE_CLASSES": ["rest_framework.throttling.AnonRateThrottle"],
        "DEFAULT_THROTTLE_RATES": {"anon": "5/min"},
    },
)
django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402
from rest_framework.decorators import api_view  # noqa: E402
from rest_framework.request import Request  # noqa: E402
from rest_framework.response import Response  # noqa: E402


@api_view()
def root(request: Request) -> Response:
    return Response("hello")


urlpatterns = [path("", root)]
app = get_wsgi_application()


# --- for the probes ---
from rest_framework.decorators import throttle_classes  # noqa: E402
from rest_framework.throttling import AnonRateThrottle  # noqa: E402


class HourThrottle(AnonRateThrottle):
    scope = "hour"
    rate = "4/hour"


class SecondThrottle(AnonRateThrottle):
    scope = "second"
    rate = "2/s"


@api_view()
@throttle_classes([])
def free(request: Request) -> Response:
    return Response("free")


@api_view()
def fail(request: Request) -> Response:
    raise ZeroDivisionError


@api_view()
@throttle_classes([HourThrottle, SecondThrottle])
def two(request: Request) -> Response:
    return Response("two")


urlpatterns += [path("free", free), path("fail", fail), path("two", two)]
