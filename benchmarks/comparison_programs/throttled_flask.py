import os

from flask import Flask
from throttled import RedisStore
from throttled.contrib.flask import Limiter, get_remote_address

app = Flask(__name__)
limiter = Limiter("5/m", app=app, store=RedisStore(server=os.environ["REDIS_URL"]), key_func=get_remote_address)


@app.get("/")
@limiter.limit()
def root() -> str:
    return "hello"


# --- for the probes ---
@app.get("/free")
def free() -> str:
    return "free"


@app.get("/fail")
@limiter.limit()
def fail() -> str:
    raise ZeroDivisionError


@app.get("/two")
@limiter.limit("4/h", key_func=lambda: f"hour {get_remote_address()}")
@limiter.limit("1/s burst 2")
def two() -> str:
    return "two"
