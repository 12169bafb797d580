import os
import time

from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from pyrate_limiter import AbstractBucket, BucketFactory, Duration, Limiter, Rate, RateItem, RedisBucket
from redis.asyncio import Redis


class BucketOfEachClient(BucketFactory):
    def __init__(self, *rates: Rate) -> None:
        self.rates = list(rates)
        self.redis = Redis.from_url(os.environ["REDIS_URL"])
        self.buckets: dict[str, AbstractBucket] = {}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, int(time.time() * 1000), weight=weight)

    async def get(self, item: RateItem) -> AbstractBucket:
        if item.name not in self.buckets:
            self.buckets[item.name] = await RedisBucket.init(self.rates, self.redis, item.name)
        return self.buckets[item.name]


app = FastAPI()
limiter = Limiter(BucketOfEachClient(Rate(5, Duration.MINUTE)))


@app.get("/", dependencies=[Depends(RateLimiter(limiter=limiter))])
async def root() -> str:
    return "hello"


# --- for the probes ---
from fastapi import APIRouter  # noqa: E402


@app.get("/free")
async def free() -> str:
    return "free"


@app.get("/fail", dependencies=[Depends(RateLimiter(limiter=limiter))])
async def fail() -> str:
    raise ZeroDivisionError


of_two = Limiter(BucketOfEachClient(Rate(2, Duration.SECOND * 2), Rate(4, Duration.HOUR)))


@app.get("/two", dependencies=[Depends(RateLimiter(limiter=of_two))])
async def two() -> str:
    return "two"


router = APIRouter(prefix="/included")


@router.get("/item")
async def item() -> str:
    return "item"


of_default = RateLimiter(limiter=Limiter(BucketOfEachClient(Rate(2, Duration.MINUTE))))
app_with_default = FastAPI(dependencies=[Depends(of_default)])
app_with_default.include_router(router)
