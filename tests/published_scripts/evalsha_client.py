"""A gateway that talks to Redis itself: it reads the published SHA1 and calls EVALSHA, as the articles do."""

from headgate.engines.redis.published_scripts import publish
from tests.servers import RedisServer
from tests.servers.raw_redis_client import ErrorReply, Reply

KEY = "rate_limiter:seckill:1"


class EvalshaClient:
    """Calls on one key; an error reply is answered as its text."""

    def __init__(self, server: RedisServer, key: str = KEY) -> None:
        publish(server.url)
        self.server = server
        self.key = key

    def limiter(self, method: str, *words: str | int) -> Reply | str:
        return self._evalsha("rate_limiter", method, *words)

    def bucket(self, *words: str | int) -> Reply | str:
        return self._evalsha("token_bucket", *words)

    def configure(self, **fields: str | int | float) -> None:
        self.server.call("HSET", self.key, *(str(word) for pair in fields.items() for word in pair))

    def hash(self) -> dict[str, str]:
        reply = self.server.call("HGETALL", self.key)
        assert isinstance(reply, list)
        words = [word.decode() for word in reply if isinstance(word, bytes)]
        return dict(zip(words[::2], words[1::2], strict=True))

    def writes(self) -> int:
        """Returns how many changes the server has seen."""
        reply = self.server.call("INFO", "persistence")
        assert isinstance(reply, bytes)
        return int(reply.split(b"rdb_changes_since_last_save:")[1].split()[0])

    def pttl(self) -> Reply:
        return self.server.call("PTTL", self.key)

    def at(self, at_us: int) -> "EvalshaClient":
        self.server.clock.set_us(at_us)
        return self

    def without_key(self, name: str, *words: str | int) -> str:
        """The same with no key at all."""
        return str(self._evalsha(name, *words, keys=()))

    def _evalsha(self, name: str, *words: str | int, keys: tuple[str, ...] | None = None) -> Reply | str:
        sha = self.server.call("GET", f"lua:sha1:{name}")
        assert isinstance(sha, bytes)
        keys = (self.key,) if keys is None else keys
        try:
            return self.server.call("EVALSHA", sha, len(keys), *keys, *words)
        except ErrorReply as refused:
            return str(refused)
