"""A shop in plain WSGI, without a framework: limits in code, around the whole application.

    pip install headgate gunicorn
    gunicorn examples.wsgi_app:app
    curl -i localhost:8000/items/7

Bottle, Pyramid, Falcon and any other WSGI application are wrapped in the same way. Without ENGINE it counts in
memory, which is right for one process. For several:

    ENGINE=redis://localhost:6379/0 gunicorn --workers 4 examples.wsgi_app:app
"""

import json
import os
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

from headgate.integrations.wsgi import WSGIRateLimitMiddleware, limit


def shop(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    status, answer = respond(environ["REQUEST_METHOD"], environ["PATH_INFO"], parse_qs(environ["QUERY_STRING"]))
    start_response(f"{status.value} {status.phrase}", [("Content-Type", "application/json")])
    return [json.dumps(answer).encode()]


def respond(method: str, path: str, query: dict[str, list[str]]) -> tuple[HTTPStatus, object]:
    match method, path.strip("/").split("/"):
        case "GET", ["items", item]:
            return HTTPStatus.OK, {"item": int(item)}
        case "POST", ["login"]:
            correct = query.get("password") == ["open sesame"]
            return HTTPStatus.OK if correct else HTTPStatus.UNAUTHORIZED, {"welcome": correct}
        case "GET", ["health"]:
            return HTTPStatus.OK, "fine"
    return HTTPStatus.NOT_FOUND, "nothing here"


app = WSGIRateLimitMiddleware(
    shop,
    engine=os.environ.get("ENGINE", "memory://"),
    limits=[
        limit("100/minute"),  # all requests of one client
        limit("3/minute", when={"path": "/items/{item}"}, key=["address", "item"], name="item"),
        limit("5/hour", when={"path": "/login"}, name="login", refund="2xx"),  # counts failures only
    ],
    exempt=["/health"],
    trusted_proxies=["10.0.0.0/8"],
)
