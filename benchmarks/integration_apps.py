"""The applications of benchmarks.integrations: one factory for each subject; REDIS_URL names the server."""

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from headgate import AsyncLimiter
from headgate.integrations.asgi import RateLimitMiddleware
from headgate.integrations.fastapi import limit, rate_limits

REDIS_URL = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
PATIENT = f"{REDIS_URL}?deadline=5s"  # the peers have no deadline
LIMIT = "1000000/s"


async def _hello(request: Request) -> Response:
    return PlainTextResponse("hello")


def starlette_alone() -> Any:
    return Starlette(routes=[Route("/", _hello)])


def starlette_in_memory() -> Any:
    return RateLimitMiddleware(starlette_alone(), limits=[limit(LIMIT)])


def starlette_on_redis() -> Any:
    return RateLimitMiddleware(starlette_alone(), engine=PATIENT, limits=[limit(LIMIT)])


def starlette_by_hand_on_redis() -> Any:
    app, limiter = starlette_alone(), AsyncLimiter(LIMIT, PATIENT)

    async def limited(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        decision = await limiter.take(scope["client"][0])
        assert decision.allowed

        async def send_with_fields(message: Any) -> None:
            if message["type"] == "http.response.start":
                state = f'"app";r={decision.remaining};t={math.ceil(decision.reset_after)}'
                fields = (b"ratelimit-policy", b'"app";q=1000000;w=1'), (b"ratelimit", state.encode())
                message = {**message, "headers": [*message["headers"], *fields]}
            await send(message)

        await app(scope, receive, send_with_fields)

    return limited


def fastapi_alone() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    async def root() -> str:
        return "hello"

    return app


def fastapi_on_redis() -> FastAPI:
    app = FastAPI()
    rate_limits(app, engine=PATIENT)

    @app.get("/", dependencies=[Depends(limit(LIMIT))])
    async def root() -> str:
        return "hello"

    return app


def slowapi_on_redis() -> FastAPI:
    from slowapi import Limiter, _rate_limit_exceeded_handler
    from slowapi.errors import RateLimitExceeded
    from slowapi.util import get_remote_address

    app = FastAPI()
    limiter = Limiter(key_func=get_remote_address, storage_uri=REDIS_URL)
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)  # type: ignore[arg-type]

    @app.get("/")
    @limiter.limit("1000000/second")
    async def root(request: Request) -> str:
        return "hello"

    return app


def fastapi_limiter_on_redis() -> FastAPI:
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Limiter, Rate, RedisBucket
    from redis.asyncio import Redis

    limits: list[RateLimiter] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        bucket = await RedisBucket.init([Rate(1_000_000, 1000)], Redis.from_url(REDIS_URL), "bench")  # type: ignore[misc]
        limits.append(RateLimiter(limiter=Limiter(bucket)))
        yield

    app = FastAPI(lifespan=lifespan)

    async def limited(request: Request, response: Response) -> None:
        await limits[0](request, response)

    @app.get("/", dependencies=[Depends(limited)])
    async def root() -> str:
        return "hello"

    return app
