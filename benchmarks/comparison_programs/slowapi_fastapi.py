import os

from fastapi import FastAPI, Request, Response
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded
from slowapi.util import get_remote_address

app = FastAPI()
limiter = Limiter(key_func=get_remote_address, storage_uri=os.environ["REDIS_URL"], headers_enabled=True)
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


@app.get("/")
@limiter.limit("5/minute")
async def root(request: Request, response: Response) -> str:
    return "hello"


# --- for the probes ---
from fastapi import APIRouter  # noqa: E402
from slowapi.middleware import SlowAPIMiddleware  # noqa: E402


@app.get("/free")
async def free() -> str:
    return "free"


@app.get("/fail")
@limiter.limit("5/minute")
async def fail(request: Request, response: Response) -> str:
    raise ZeroDivisionError


@app.get("/two")
@limiter.limit("4/hour; 2/2seconds")
async def two(request: Request, response: Response) -> str:
    return "two"


router = APIRouter(prefix="/included")


@router.get("/item")
async def item() -> str:
    return "item"


app_with_default = FastAPI()
app_with_default.state.limiter = Limiter(
    key_func=get_remote_address, storage_uri=os.environ["REDIS_URL"], default_limits=["2/minute"]
)
app_with_default.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
app_with_default.add_middleware(SlowAPIMiddleware)
app_with_default.include_router(router)
