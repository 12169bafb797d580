import os

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

app = Flask(__name__)
limiter = Limiter(get_remote_address, app=app, storage_uri=os.environ["REDIS_URL"], headers_enabled=True)


@app.get("/")
@limiter.limit("5/minute")
def root() -> str:
    return "hello"


# --- for the probes ---
from flask import Blueprint  # noqa: E402


@app.get("/free")
def free() -> str:
    return "free"


@app.get("/fail")
@limiter.limit("5/minute")
def fail() -> str:
    raise ZeroDivisionError


@app.get("/two")
@limiter.limit("4/hour; 2/2seconds")
def two() -> str:
    return "two"


blueprint = Blueprint("included", __name__, url_prefix="/included")


@blueprint.get("/item")
def item() -> str:
    return "item"


app_with_default = Flask(__name__)
Limiter(get_remote_address, app=app_with_default, storage_uri=os.environ["REDIS_URL"], default_limits=["2/minute"])
app_with_default.register_blueprint(blueprint)
