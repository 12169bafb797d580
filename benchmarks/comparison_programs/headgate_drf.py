import os

import django
from django.conf import settings
from django.urls import path

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "headgate.integrations.django"],
    MIDDLEWARE=["headgate.integrations.django.HeadgateMiddleware"],
    HEADGATE={"engine": os.environ["REDIS_URL"]},
    REST_FRAMEWORK={
        "DEFAULT_THROTTLE_CLASSES": ["headgate.integrations.drf.AnonRateThrottle"],
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

from headgate.integrations.drf import throttle  # noqa: E402


@api_view()
@throttle_classes([])
def free(request: Request) -> Response:
    return Response("free")


@api_view()
def fail(request: Request) -> Response:
    raise ZeroDivisionError


@api_view()
@throttle_classes([throttle("4/hour", key="address"), throttle("2/2s", key="address")])
def two(request: Request) -> Response:
    return Response("two")


urlpatterns += [path("free", free), path("fail", fail), path("two", two)]
