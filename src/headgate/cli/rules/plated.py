"""What a push publishes beside the text: the book's plate, and its scripts where gateways find them.

The texts are stored before any edition names them. That they are also loaded into every server spares a gateway
its first round trip and is no more than that: who may not load scripts, or has a replica down, is warned, and the
book is published.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headgate.cli.answer import warn
from headgate.clock import SystemClock
from headgate.errors import EngineUnavailable
from headgate.gateway import plate
from headgate.rules.living.edition import Edition
from headgate.rules.rule import Rulebook

if TYPE_CHECKING:
    from headgate.engine.redis.blocking import RedisEngine


def document(engine: RedisEngine, book: Rulebook, *, as_json: bool) -> str:
    """The document of an edition that says this, once its scripts are stored."""
    from headgate.engine.redis import publish

    made = plate.plate(book, SystemClock().now_us())
    texts = plate.texts(made)
    publish.keep(engine, texts)
    try:
        publish.load(engine, texts)
    except EngineUnavailable as error:
        warn(
            f"The scripts could not be loaded everywhere; gateways will do so themselves. {error}", as_json=as_json
        )
    return json.dumps(made, separators=(",", ":"))


def says(edition: Edition, book: Rulebook) -> bool:
    """Whether the edition holds just what would be published of this book, had it been then. Not if another
    version of headgate made it: its scripts, or what it tells gateways, may be others."""
    held: object = json.loads(edition.document)
    return held == plate.plate(book, edition.at_us)
