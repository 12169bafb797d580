"""Versions on real servers, for the tests that push them and for those that watch."""

import json
from typing import Any

from headgate.engines.redis.rulebook_versions import RedisVersionStore
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.rules.distribution.version import RulebookVersion
from headgate.rules.distribution.versions import RulebookVersions

KEY = "hg2:rules"

engines: list[RedisEngine] = []


def close_all() -> None:
    while engines:
        engines.pop().close()


def versions_at(url: str, prefix: str = "hg") -> RulebookVersions:
    engines.append(RedisEngine(url, prefix=prefix))
    return RulebookVersions(RedisVersionStore(engines[-1]))


def pushed(versions: RulebookVersions, text: str, **said: Any) -> RulebookVersion:
    words = {"format": "yaml", "author": "ana", "note": f"about {text}"} | said
    return versions.push(f"# {text}", json.dumps({"name": text}), **words)
