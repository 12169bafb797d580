"""A shop in Flask, with limits per application, blueprint and view.

    pip install 'headgate[flask]' gunicorn
    gunicorn examples.flask_app:app
    curl -i localhost:8000/items/7
    flask --app examples.flask_app headgate limits

Without ENGINE it counts in memory, which is right for one process. For several:

    ENGINE=redis://localhost:6379/0 gunicorn examples.flask_app:app --workers 4
"""

import os
from collections.abc import Iterator

from flask import Blueprint, Flask, Request, Response, g, request
from flask.typing import ResponseReturnValue
from flask.views import MethodView

from headgate.integrations.flask import RateLimiter, RateLimitExceeded, exempt, limit


def user_of(request: Request) -> str | None:
    """Returns the user's name; a real application reads its session or token."""
    return request.headers.get("x-user")


limiter = RateLimiter(
    engine=os.environ.get("ENGINE", "memory://"),
    limits=[limit("100/minute", key="address")],  # all requests of one client
    default_limits=[limit("60/minute", key="address")],  # each route that has no limit of its own
    user=user_of,
    exempt=["/static/**"],
    trusted_proxies=["10.0.0.0/8"],
)

# Every route of this blueprint counts by itself: 20 requests of each per minute.
items = Blueprint("items", __name__, url_prefix="/items")
limit("20/minute", key="address")(items)


class ItemView(MethodView):
    def get(self, item: int) -> ResponseReturnValue:
        return {"item": item}

    @limit("2/minute", key="address")
    def delete(self, item: int) -> ResponseReturnValue:
        return "", 204


items.add_url_rule("/<int:item>", view_func=ItemView.as_view("item"))


@items.post("/<int:item>/orders")
@limit("3/minute; 50/day", key=["user", "param.item"], missing="deny")
def order(item: int) -> ResponseReturnValue:
    return {"order": f"item {item}"}


app = Flask(__name__)
limiter.init_app(app)
app.register_blueprint(items)


@app.post("/login")
@limit("5/hour", key="address", refund="2xx")  # only failures count
def login() -> ResponseReturnValue:
    if request.form.get("password") != "open sesame":
        return {"error": "Wrong password."}, 401
    return {"token": "..."}


@app.get("/report")
@limit("2 slots", key=None)  # two at a time, of all users, until the last line is sent
def report() -> ResponseReturnValue:
    def lines() -> Iterator[str]:
        yield "item,sold\n"
        yield "7,42\n"

    return Response(lines(), mimetype="text/csv")


@app.get("/health")
@exempt
def health() -> ResponseReturnValue:
    return {"ok": True}


@app.get("/remaining")
def remaining() -> ResponseReturnValue:
    decision = g.headgate.decision
    return {"remaining": None if decision is None else decision.remaining}


@app.get("/broken")
def broken() -> ResponseReturnValue:
    raise RuntimeError("This view is broken, and its 500 has the fields all the same.")


@app.errorhandler(RateLimitExceeded)
def slow_down(error: RateLimitExceeded) -> ResponseReturnValue:
    if request.path.startswith("/items"):
        return {"error": "Slow down.", "wait": error.decision.retry_after}, 429
    return error.get_response()
