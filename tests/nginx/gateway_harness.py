"""A real nginx with the whole gateway in it, following a rulebook of the test's own.

    with NginxGateway(BOOK, redis=server.url) as gate:  pushed to Redis, decided there
    with NginxGateway(BOOK) as gate:                    compiled to a file, decided on the shared dict
        assert gate.get("/").status == 200
        assert gate.lines() == ["200 PASSED login 9"]

Behind the gate "/" answers "ok"; `server` may say more. Several gates may follow one Redis: push() once.
"""

import contextlib
import io
import json
import tempfile
from pathlib import Path
from typing import Any

from headgate.cli import main
from tests.servers import DrivenClock, Nginx
from tests.servers.wait_until import until

HTTP = """
lua_shared_dict headgate {room};
map "" $headgate_status {{ default ""; }}
map "" $headgate_rule {{ default ""; }}
map "" $headgate_remaining {{ default ""; }}
log_format gate '$status $headgate_status $headgate_rule $headgate_remaining';
{access_log}
lua_socket_log_errors off;
init_by_lua_block {{ require("resty.headgate").init {{ {options} }} }}
init_worker_by_lua_block {{ require("resty.headgate").start() }}
{http}
"""
SERVER = """
access_by_lua_block { require("resty.headgate").access() }
log_by_lua_block { require("resty.headgate").log() }
location / { content_by_lua_block { ngx.say("ok") } }
"""

# On a busy machine an answer may take longer than the 50 ms that a gate waits: then its fallback decides, and a
# test that is not about fallbacks fails. One that is says its own deadline, or breaks the server so that it shows
# at once.
UNHURRIED = "deadline=10s"

Book = dict[str, Any]


class NginxGateway(Nginx):
    """`options` are more of what init is told, as Lua. `book` None: whatever was pushed already."""

    def __init__(
        self,
        book: Book | None,
        redis: str | None = None,
        *,
        options: str = "",
        server: str = "",
        http: str = "",
        room: str = "20m",
        workers: int = 1,
        connections: int = 4096,
        driven: DrivenClock | None = None,
        main: str = "",
        log: bool = True,
    ) -> None:
        super().__init__("", main=main, workers=workers, connections=connections, driven=driven)
        if redis is not None and "deadline=" not in redis:
            redis += f"{'&' if '?' in redis else '?'}{UNHURRIED}"
        self.redis = redis
        self.bundle = self.folder / "bundle.json"
        given = [options] if options else []
        if redis is None:
            given.append(f'rules = "{self.bundle}"')
        else:
            given.append(f'redis = "{redis}"')
        access_log = "access_log access.log gate;" if log else ""
        lines = HTTP.format(room=room, options=", ".join(given), http=http, access_log=access_log)
        self.configure(server=SERVER + server, http=lines)
        if book is not None:
            self.follow(book)

    def follow(self, book: Book) -> None:
        """Another book: pushed, or compiled."""
        if self.redis is None:
            _run(book, "compile", "-o", str(self.bundle))
        else:
            push(book, self.redis)

    def lines(self, count: int) -> list[str]:
        """Waits for that many requests in the access log, and returns status and our three variables of each."""

        def missing() -> str | None:
            logged = self._lines()
            return None if len(logged) >= count else f"the access log has {len(logged)} lines of {count}"

        until(missing, 10)
        return self._lines()

    def _lines(self) -> list[str]:
        return (self.folder / "access.log").read_text().splitlines()


def push(book: Book, redis: str) -> None:
    """Publish a book as an operator would."""
    _run(book, "push", "--engine", redis.split("?")[0], "--author", "test")


def _run(book: Book, verb: str, *words: str) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "book.json"
        path.write_text(json.dumps(book))
        assert main(["rules", verb, str(path), *words]) == 0
