import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from headgate.integrations.django import limit

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["headgate.integrations.django"],
    MIDDLEWARE=["headgate.integrations.django.HeadgateMiddleware"],
    HEADGATE={"engine": os.environ["REDIS_URL"]},
)


@limit("5/minute")
def root(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("", root)]
app = get_wsgi_application()


# --- for the probes ---
def free(request: HttpRequest) -> HttpResponse:
    return HttpResponse("free")


@limit("5/minute")
def fail(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


@limit("4/hour; 2/2s")
def two(request: HttpRequest) -> HttpResponse:
    return HttpResponse("two")


urlpatterns += [path("free", free), path("fail", fail), path("two", two)]
