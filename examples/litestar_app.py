"""A shop in Litestar: a rulebook, around the whole application.

    pip install headgate litestar uvicorn
    uvicorn examples.litestar_app:app
    curl -i localhost:8000/items/7

Without ENGINE it counts in memory, which is right for one process. For several:

    ENGINE=redis://localhost:6379/0 uvicorn examples.litestar_app:app --workers 4
"""

import os

from litestar import Litestar, Response, get, post

from headgate.integrations.asgi import RateLimitMiddleware, limit

RULES = {  # or the name of a file, such as rules.yaml, which may change while the application runs
    "rules": [
        {"name": "app", "key": "address", "missing": "one", "limit": "100/minute"},
        {
            "name": "item",
            "when": {"path": "/items/{item}"},
            "key": ["address", "item"],
            "missing": "one",
            "limit": "3/minute",
        },
    ]
}


@get("/items/{item:int}")
async def show(item: int) -> dict[str, int]:
    return {"item": item}


@post("/login")
async def login(password: str = "") -> Response[dict[str, bool]]:
    correct = password == "open sesame"
    return Response({"welcome": correct}, status_code=200 if correct else 401)


@get("/health")
async def health() -> str:
    return "fine"


app = RateLimitMiddleware(
    Litestar([show, login, health]),
    RULES,
    os.environ.get("ENGINE", "memory://"),
    limits=[limit("5/hour", when={"path": "/login"}, name="login", refund="2xx")],  # counts failures only
    exempt=["/health"],
    trusted_proxies=["10.0.0.0/8"],
)
