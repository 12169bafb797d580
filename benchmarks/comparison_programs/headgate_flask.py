import os

from flask import Flask

from headgate.integrations.flask import RateLimiter, limit

app = Flask(__name__)
RateLimiter(app, engine=os.environ["REDIS_URL"])


@app.get("/")
@limit("5/minute")
def root() -> str:
    return "hello"


# --- for the probes ---
from flask import Blueprint  # noqa: E402


@app.get("/free")
def free() -> str:
    return "free"


@app.get("/fail")
@limit("5/minute")
def fail() -> str:
    raise ZeroDivisionError


@app.get("/two")
@limit("4/hour; 2/2s")
def two() -> str:
    return "two"


blueprint = Blueprint("included", __name__, url_prefix="/included")


@blueprint.get("/item")
def item() -> str:
    return "item"


app_with_default = Flask(__name__)
RateLimiter(app_with_default, engine=os.environ["REDIS_URL"], default_limits=[limit("2/minute")])
app_with_default.register_blueprint(blueprint)
