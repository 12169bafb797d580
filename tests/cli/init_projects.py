"""Small projects for the tests of headgate init, and a program that calls their applications."""

FASTAPI = '''\
"""A shop."""

from fastapi import APIRouter, FastAPI

app = FastAPI()
auth = APIRouter(prefix="/auth")


@app.get("/items/{item}")
async def show(item: int) -> int:
    return item


@auth.post("/login")
async def login() -> str:
    return "welcome"


@app.get("/healthz")
async def health() -> str:
    return "fine"


app.include_router(auth, prefix="/api")
'''
FLASK = """\
from flask import Flask


def create_app() -> Flask:
    app = Flask(__name__)

    @app.route("/api/auth/login", methods=["GET", "POST"])
    def login() -> str:
        return "welcome"

    return app


app = create_app()
"""
STARLETTE = """\
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def login(request):
    return PlainTextResponse("welcome")


app = Starlette(routes=[Route("/api/auth/login", login, methods=["POST"])])
"""
QUART = """\
from quart import Quart

app = Quart(__name__)


@app.post("/api/auth/login")
async def login():
    return "welcome"
"""
AIOHTTP = """\
from aiohttp import web


async def login(request):
    return web.Response(text="welcome")


app = web.Application()
app.router.add_post("/api/auth/login", login)
"""
ASGI = """\
async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"welcome"})


if __name__ == "__main__":
    print(app)
"""
WSGI = '''\
"""A program without imports."""


def app(environ, start_response):
    start_response("200 OK", [])
    return [b"welcome"]
'''
SETTINGS = """\
SECRET_KEY = "for tests"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware",
              "django.contrib.auth.middleware.AuthenticationMiddleware"]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
"""
URLS = """\
from django.http import HttpResponse
from django.urls import include, path

urlpatterns = [
    path("api/auth/login/", lambda request: HttpResponse("welcome")),
    path("accounts/", include("django.contrib.auth.urls")),
]
"""
COMPOSE = """\
services:
  web:
    build: .
    environment:
      REDIS_URL: redis://cache:6379/0
  cache:
    image: docker.io/valkey/valkey:8-alpine   # the cache
    ports:
      - "127.0.0.1:6380:6379"
  admin:
    image: rediscommander/redis-commander
"""
NGINX = """\
events {}
http {
  limit_req_zone $binary_remote_addr zone=all:10m rate=5r/s;
  server {
    location / {
      proxy_pass http://web:8000;
    }
  }
}
"""

# Sends 12 logins to an application, and prints the status and the fields of each as JSON.
CALLS = """\
import asyncio, json, os, sys
import httpx

kind, path = sys.argv[1:]
seen = []


def add(status, headers):
    seen.append([status, {name.lower(): value for name, value in headers.items()}])


if kind == "django":
    os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
    import django

    django.setup()
    from django.test import Client

    for _ in range(12):
        response = Client().post(path)
        add(response.status_code, response.headers)
else:
    from main import app
if kind == "wsgi":
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as client:
        for _ in range(12):
            response = client.post(path)
            add(response.status_code, response.headers)
if kind == "asgi":

    async def call():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            for _ in range(12):
                response = await client.post(path)
                add(response.status_code, response.headers)

    asyncio.run(call())
if kind == "aiohttp":
    from aiohttp.test_utils import TestClient, TestServer

    async def call():
        async with TestClient(TestServer(app)) as client:
            for _ in range(12):
                response = await client.post(path)
                add(response.status, response.headers)

    asyncio.run(call())
print(json.dumps(seen))
"""
