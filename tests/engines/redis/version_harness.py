"""Editions on real servers, for the tests that push them and for those that watch."""

import json
from typing import Any

from headgate.engines.redis.rulebook_versions import Archive
from headgate.engines.redis.sync_engine import RedisEngine
from headgate.rules.distribution.version import Edition
from headgate.rules.distribution.versions import Editions

KEY = "hg2:rules"

engines: list[RedisEngine] = []


def close_all() -> None:
    while engines:
        engines.pop().close()


def editions_at(url: str, prefix: str = "hg") -> Editions:
    engines.append(RedisEngine(url, prefix=prefix))
    return Editions(Archive(engines[-1]))


def pushed(editions: Editions, text: str, **said: Any) -> Edition:
    words = {"format": "yaml", "author": "ana", "note": f"about {text}"} | said
    return editions.push(f"# {text}", json.dumps({"name": text}), **words)
