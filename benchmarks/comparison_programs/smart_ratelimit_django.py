import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django_smart_ratelimit import ratelimit

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django_smart_ratelimit"],
    RATELIMIT_BACKEND="redis",
    RATELIMIT_REDIS={"url": os.environ["REDIS_URL"]},
)


@ratelimit(key="ip", rate="5/m")
def root(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


urlpatterns = [path("", root)]
app = get_wsgi_application()


# --- for the probes ---
from django_smart_ratelimit.decorator import ratelimit_batch  # noqa: E402


def free(request: HttpRequest) -> HttpResponse:
    return HttpResponse("free")


@ratelimit(key="ip", rate="5/m")
def fail(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


@ratelimit_batch(
    [{"rate": "4/h", "key": "ip", "group": "hour"}, {"rate": "2/2s", "key": "ip", "group": "seconds"}]
)
def two(request: HttpRequest) -> HttpResponse:
    return HttpResponse("two")


urlpatterns += [path("free", free), path("fail", fail), path("two", two)]
