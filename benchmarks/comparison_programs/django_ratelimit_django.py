import os

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django_ratelimit.decorators import ratelimit
from django_ratelimit.exceptions import Ratelimited

settings.configure(
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    CACHES={
        "default": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": os.environ["REDIS_URL"]}
    },
)


@ratelimit(key="ip", rate="5/m")
def root(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    return HttpResponse(status=429 if isinstance(exception, Ratelimited) else 403)


urlpatterns = [path("", root)]
app = get_wsgi_application()


# --- for the probes ---
def free(request: HttpRequest) -> HttpResponse:
    return HttpResponse("free")


@ratelimit(key="ip", rate="5/m")
def fail(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


@ratelimit(key="ip", rate="4/h", group="hour")
@ratelimit(key="ip", rate="2/2s", group="seconds")
def two(request: HttpRequest) -> HttpResponse:
    return HttpResponse("two")


urlpatterns += [path("free", free), path("fail", fail), path("two", two)]
