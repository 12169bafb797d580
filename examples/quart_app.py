"""A shop in Quart: limits in code, around the whole application.

    pip install headgate quart
    hypercorn examples.quart_app:app
    curl -i localhost:8000/items/7

Without ENGINE it counts in memory, which is right for one process. For several:

    ENGINE=redis://localhost:6379/0 hypercorn --workers 4 examples.quart_app:app
"""

import os
from typing import Any

from quart import Quart, request

from headgate.integrations.asgi import RateLimitMiddleware, limit

app = Quart(__name__)


@app.get("/items/<int:item>")
async def show(item: int) -> dict[str, int]:
    return {"item": item}


@app.post("/login")
async def login() -> tuple[dict[str, bool], int]:
    correct = request.args.get("password") == "open sesame"
    return {"welcome": correct}, 200 if correct else 401


@app.get("/health")
async def health() -> str:
    return "fine"


limited: Any = RateLimitMiddleware(
    app.asgi_app,
    engine=os.environ.get("ENGINE", "memory://"),
    limits=[
        limit("100/minute"),  # all requests of one client
        limit("3/minute", when={"path": "/items/{item}"}, key=["address", "item"], name="item"),
        limit("5/hour", when={"path": "/login"}, name="login", refund="2xx"),  # counts failures only
    ],
    exempt=["/health"],
    trusted_proxies=["10.0.0.0/8"],
)
app.asgi_app = limited
