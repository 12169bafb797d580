"""The other rate limiters, each called the way its own documentation shows."""

import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

Take = Callable[[str], Any]  # true if the call may pass
AsyncTake = Callable[[str], Awaitable[Any]]

LIMITS = ("fixed", "moving", "sliding")
THROTTLED = ("fixed_window", "sliding_window", "token_bucket", "leaking_bucket", "gcra")
PYRATE = ("log", "token", "gcra")
PYRATE_REDIS = ("log", "gcra")
CONNECTIONS = 4000  # redis-py's pools hold 100 unless told otherwise, and fail beyond that


def limits(strategy: str, amount: int, seconds: int, url: str = "memory://") -> Take:
    """Answers yes or no; its other numbers take a second call."""
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


def pyrate_redis(algorithm: str, amount: int, seconds: int, url: str, blocking: bool = False) -> Take:
    """Without blocking it refuses whenever another thread is inside."""
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
    return _by_key(make, lambda: time.time_ns() // 1_000_000, blocking)


def _by_key(make: Callable[[str], Any], now_ms: Callable[[], int], blocking: bool = False) -> Take:
    acquire = _pyrate_limiter(make, now_ms).try_acquire
    return lambda key: acquire(key, blocking=blocking)


def _pyrate_limiter(make: Callable[[str], Any], now_ms: Callable[[], int]) -> Any:
    from pyrate_limiter import BucketFactory, Limiter, RateItem

    class KeyedBucketFactory(BucketFactory):
        def __init__(self) -> None:
            self.by_key: dict[str, Any] = {}

        def wrap_item(self, name: str, weight: int = 1) -> Any:
            return RateItem(name, now_ms(), weight=weight)

        def get(self, item: Any) -> Any:
            bucket = self.by_key.get(item.name)
            if bucket is None:
                bucket = self.by_key[item.name] = make(item.name)
            return bucket

    return Limiter(KeyedBucketFactory())


def redis_py(url: str, script: str, unit_us: int, burst_us: int, one_connection: bool) -> Take:
    """No rate limiter: redis-py calling the minimal script, as one would by hand."""
    import redis

    client = redis.Redis.from_url(url, single_connection_client=one_connection)
    sha, evalsha = client.script_load(script), client.evalsha
    return lambda key: evalsha(sha, 1, key, unit_us, burst_us)


async def async_limits(strategy: str, amount: int, seconds: int, url: str) -> AsyncTake:
    import limits as library
    from limits.aio import storage, strategies

    kinds: dict[str, Any] = {
        "fixed": strategies.FixedWindowRateLimiter,
        "moving": strategies.MovingWindowRateLimiter,
        "sliding": strategies.SlidingWindowCounterRateLimiter,
    }
    store = storage.RedisStorage(f"async+{url}", implementation="redispy", max_connections=CONNECTIONS)
    hit, item = kinds[strategy](store).hit, library.RateLimitItemPerSecond(amount, seconds)
    return lambda key: hit(item, key)


async def async_throttled(algorithm: str, amount: int, seconds: int, url: str) -> AsyncTake:
    from throttled.asyncio import RedisStore, Throttled
    from throttled.rate_limiter import per_duration

    quota = per_duration(timedelta(seconds=seconds), limit=amount, burst=amount)
    store = RedisStore(server=url, options={"CONNECTION_POOL_KWARGS": {"max_connections": CONNECTIONS}})
    limit = Throttled(using=algorithm, quota=quota, store=store).limit

    async def take(key: str) -> bool:
        return not (await limit(key)).limited

    return take


async def async_pyrate(algorithm: str, amount: int, seconds: int, url: str) -> AsyncTake:
    import redis.asyncio
    from pyrate_limiter import GCRA, Rate, RedisBucket, StateBucket
    from pyrate_limiter.buckets.redis_bucket import LuaScript
    from pyrate_limiter.buckets.redis_state import RedisStateStore

    client = redis.asyncio.Redis.from_url(url, max_connections=CONNECTIONS)
    rates = [Rate(amount, seconds * 1000)]
    put = await client.script_load(LuaScript.PUT_ITEM)
    make: Callable[[str], Any] = {
        "log": lambda key: RedisBucket(rates, client, key, put),
        "gcra": lambda key: StateBucket(rates, algorithm=GCRA(), store=RedisStateStore(client, key)),
    }[algorithm]
    acquire = _pyrate_limiter(make, lambda: time.time_ns() // 1_000_000).try_acquire_async
    return lambda key: acquire(key, blocking=False)


async def async_redis_py(url: str, script: str, unit_us: int, burst_us: int) -> AsyncTake:
    """No rate limiter: redis.asyncio calling the minimal script, as one would by hand."""
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(url, max_connections=CONNECTIONS)
    sha, evalsha = await client.script_load(script), client.evalsha

    async def take(key: str) -> bool:
        return bool((await evalsha(sha, 1, key, unit_us, burst_us))[0])

    return take


async def valkey_glide(port: int, script: str, unit_us: int, burst_us: int) -> AsyncTake:
    """No rate limiter: the client that is written in Rust, calling the minimal script."""
    from glide import GlideClient, GlideClientConfiguration, NodeAddress, Script

    settings = GlideClientConfiguration(
        [NodeAddress("127.0.0.1", port)], inflight_requests_limit=5000, request_timeout=5000
    )
    client, call, words = await GlideClient.create(settings), Script(script), [str(unit_us), str(burst_us)]
    invoke: Any = client.invoke_script

    async def take(key: str) -> bool:
        return bool((await invoke(call, keys=[key], args=words))[0])

    return take


def async_redis(url: str, amount: int, seconds: int) -> dict[str, tuple[Any, ...]]:
    """Every peer that is awaited, by name: what makes it, and what that is given."""
    made: dict[str, tuple[Any, ...]] = {}
    made |= {f"limits {name}": (async_limits, name, amount, seconds, url) for name in LIMITS}
    made |= {f"throttled-py {name}": (async_throttled, name, amount, seconds, url) for name in THROTTLED}
    return made | {f"pyrate-limiter {name}": (async_pyrate, name, amount, seconds, url) for name in PYRATE_REDIS}


def sync_redis(url: str, amount: int, seconds: int, blocking: bool = False) -> dict[str, tuple[Any, ...]]:
    """The same of those that answer at once."""
    made: dict[str, tuple[Any, ...]] = {}
    made |= {f"limits {name}": (limits, name, amount, seconds, url) for name in LIMITS}
    made |= {f"throttled-py {name}": (throttled, name, amount, seconds, url) for name in THROTTLED}
    named = {
        f"pyrate-limiter {name}": (pyrate_redis, name, amount, seconds, url, blocking) for name in PYRATE_REDIS
    }
    return made | named
