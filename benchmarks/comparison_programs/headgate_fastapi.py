import os

from fastapi import Depends, FastAPI

from headgate.integrations.fastapi import limit, rate_limits

app = FastAPI()
rate_limits(app, engine=os.environ["REDIS_URL"])


@app.get("/", dependencies=[Depends(limit("5/minute"))])
async def root() -> str:
    return "hello"


# --- for the probes ---
from fastapi import APIRouter  # noqa: E402


@app.get("/free")
async def free() -> str:
    return "free"


@app.get("/fail", dependencies=[Depends(limit("5/minute"))])
async def fail() -> str:
    raise ZeroDivisionError


@app.get("/two", dependencies=[Depends(limit("4/hour; 2/2s"))])
async def two() -> str:
    return "two"


router = APIRouter(prefix="/included")


@router.get("/item")
async def item() -> str:
    return "item"


app_with_default = FastAPI(dependencies=[Depends(limit("2/minute"))])
rate_limits(app_with_default, engine=os.environ["REDIS_URL"])
app_with_default.include_router(router)
