"""A shop in Starlette: limits in code, around the whole application.

    pip install headgate starlette uvicorn
    uvicorn examples.starlette_app:app
    curl -i localhost:8000/items/7

Without ENGINE it counts in memory, which is right for one process. For several:

    ENGINE=redis://localhost:6379/0 uvicorn examples.starlette_app:app --workers 4
"""

import os

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headgate.integrations.asgi import RateLimitMiddleware, limit


async def show(request: Request) -> Response:
    return JSONResponse({"item": request.path_params["item"]})


async def login(request: Request) -> Response:
    correct = request.query_params.get("password") == "open sesame"
    return JSONResponse({"welcome": correct}, 200 if correct else 401)


async def health(request: Request) -> Response:
    return JSONResponse("fine")


routes = [
    Route("/items/{item:int}", show),
    Route("/login", login, methods=["POST"]),
    Route("/health", health),
]
app = RateLimitMiddleware(
    Starlette(routes=routes),
    engine=os.environ.get("ENGINE", "memory://"),
    limits=[
        limit("100/minute"),  # all requests of one client
        limit("3/minute", when={"path": "/items/{item}"}, key=["address", "item"], name="item"),
        limit("5/hour", when={"path": "/login"}, name="login", refund="2xx"),  # counts failures only
    ],
    exempt=["/health"],
    trusted_proxies=["10.0.0.0/8"],
)
