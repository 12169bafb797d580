"""Opens rulebook versions on real servers, for tests that push them and for tests that watch them."""

import json
from typing import Any

from headgate.engines.redis.rulebook_versions import RedisVersionStore
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.rules.distribution.published_versions import RulebookVersions
from headgate.rules.distribution.rulebook_version import RulebookVersion

KEY = "hg2:rules"

engines: list[RedisEngine] = []


def close_all() -> None:
    while engines:
        engines.pop().close()


def open_versions(url: str, prefix: str = "hg") -> RulebookVersions:
    engines.append(RedisEngine(url, prefix=prefix, deadline=10))
    return RulebookVersions(RedisVersionStore(engines[-1]))


def push_text(versions: RulebookVersions, text: str, **fields: Any) -> RulebookVersion:
    words = {"format": "yaml", "author": "ana", "note": f"about {text}"} | fields
    return versions.push(f"# {text}", json.dumps({"name": text}), **words)
