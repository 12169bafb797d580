"""The other rate limiters, each called the way its own documentation shows."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

Take = Callable[[str], Any]  # true if the call may pass

LIMITS = ("fixed", "moving", "sliding")
THROTTLED = ("fixed_window", "sliding_window", "token_bucket", "leaking_bucket", "gcra")
PYRATE = ("log", "token", "gcra")
PYRATE_REDIS = ("log", "gcra")


def limits(strategy: str, amount: int, seconds: int, url: str = "memory://") -> Take:
    """Answers yes or no; its other facts take a second call."""
    import limits as library
    from limits import storage, strategies

    kinds: dict[str, Any] = {
        "fixed": strategies.FixedWindowRateLimiter,
        "moving": strategies.MovingWindowRateLimiter,
        "sliding": strategies.SlidingWindowCounterRateLimiter,
    }
    hit = kinds[strategy](storage.storage_from_string(url)).hit
    item = library.RateLimitItemPerSecond(amount, seconds)
    return lambda key: hit(item, key)


def throttled(algorithm: str, amount: int, seconds: int, url: str | None = None) -> Take:
    """Answers with a result and its state."""
    from throttled import MemoryStore, RedisStore, Throttled
    from throttled.rate_limiter import per_duration

    quota = per_duration(timedelta(seconds=seconds), limit=amount, burst=amount)
    # Its memory holds 1,024 keys unless told otherwise.
    store = RedisStore(server=url, options={}) if url else MemoryStore(options={"MAX_SIZE": 10**7})
    limit = Throttled(using=algorithm, quota=quota, store=store).limit
    return lambda key: not limit(key).limited


def pyrate(algorithm: str, amount: int, seconds: int) -> Take:
    """Answers yes or no. One bucket for each key."""
    from pyrate_limiter import GCRA, InMemoryBucket, Rate, StateBucket, TokenBucket

    rates = [Rate(amount, seconds * 1000)]
    make: Callable[[str], Any] = {
        "log": lambda _: InMemoryBucket(rates),
        "token": lambda _: StateBucket(rates, algorithm=TokenBucket()),
        "gcra": lambda _: StateBucket(rates, algorithm=GCRA()),
    }[algorithm]
    return _by_key(make, make("").now)


def pyrate_redis(algorithm: str, amount: int, seconds: int, url: str) -> Take:
    import redis
    from pyrate_limiter import GCRA, Rate, RedisBucket, StateBucket
    from pyrate_limiter.buckets.redis_bucket import LuaScript
    from pyrate_limiter.buckets.redis_state import RedisStateStore

    client = redis.Redis.from_url(url)
    rates = [Rate(amount, seconds * 1000)]
    put = client.script_load(LuaScript.PUT_ITEM)
    make: Callable[[str], Any] = {
        "log": lambda key: RedisBucket(rates, client, key, put),
        "gcra": lambda key: StateBucket(rates, algorithm=GCRA(), store=RedisStateStore(client, key)),
    }[algorithm]
    return _by_key(make, lambda: time.time_ns() // 1_000_000)


def _by_key(make: Callable[[str], Any], now_ms: Callable[[], int]) -> Take:
    from pyrate_limiter import BucketFactory, Limiter, RateItem

    class Factory(BucketFactory):
        def __init__(self) -> None:
            self.by_key: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return RateItem(name, now_ms(), weight=weight)

        def get(self, item: Any) -> Any:
            bucket = self.by_key.get(item.name)
            if bucket is None:
                bucket = self.by_key[item.name] = make(item.name)
            return bucket

    acquire = Limiter(Factory()).try_acquire
    return lambda key: acquire(key, blocking=False)


def redis_py(url: str, script: str, unit_us: int, burst_us: int, one_connection: bool) -> Take:
    """No rate limiter: redis-py calling the minimal script, as one would by hand."""
    import redis

    client = redis.Redis.from_url(url, single_connection_client=one_connection)
    sha, evalsha = client.script_load(script), client.evalsha
    return lambda key: evalsha(sha, 1, key, unit_us, burst_us)
