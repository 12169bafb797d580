"""Runs a real nginx that calls our Redis modules as a test says (driver.lua), and builds charges."""

import http.client
import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from headgate.algorithms.limit import Limit
from headgate.engines.redis.script_assembly import (
    Script,
    algorithm_script,
    fits_one_string,
    mixed_script,
    standalone_script,
)
from headgate.limit_syntax import parse
from tests.nginx.pure_modules_process import bundle_entry
from tests.servers import Nginx
from tests.servers.cluster import slot_of

DRIVER = Path(__file__).with_name("driver.lua")
SERVER = """
location / {
  client_max_body_size 64m; client_body_buffer_size 64m;
  content_by_lua_block {
    local driver = package.loaded.driver or dofile("%s")
    package.loaded.driver = driver
    driver.serve()
  }
}
"""
HTTP = "lua_socket_log_errors off;\n"

_ids = itertools.count()


PATIENCE_S = 20


class NginxRedisError(Exception):
    """An error that the engine returned in place of an answer."""

    def __init__(self, error: Any) -> None:
        super().__init__(error["text"] if isinstance(error, dict) else error)
        self.kind = error.get("kind") if isinstance(error, dict) else None
        self.retry = error.get("retry") if isinstance(error, dict) else None


class RedisDriverNginx:
    """A running nginx with the driver."""

    def __init__(self, lines: str = "") -> None:
        self.nginx = Nginx(SERVER % DRIVER, HTTP + lines, level="warn")
        self._thread_local = threading.local()
        self._connections: list[http.client.HTTPConnection] = []

    def call_driver(self, verb: str, **question: Any) -> Any:
        connection = getattr(self._thread_local, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.nginx.port, timeout=30)
            self._thread_local.connection = connection
            self._connections.append(connection)
        connection.request("POST", "/", json.dumps({"verb": verb, **question}))
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, f"{body.decode()}\n{self.nginx.log}"
        reply = json.loads(body)
        if reply["none"] and reply["trouble"]:
            raise NginxRedisError(reply["trouble"])
        return None if reply["none"] else reply["answer"]

    def engine(
        self,
        url: str,
        limits: Mapping[str, str],
        terms: Mapping[str, Any] | None = None,
        zones: Mapping[str, Any] | None = None,
    ) -> "NginxRedisEngine":
        """Rules by name with a limit each; `terms` of those that have some.

        Answers have time, unless the URL says how much: a busy machine is no fault.
        """
        if "deadline=" not in url:
            url += f"{'&' if '?' in url else '?'}deadline={PATIENCE_S}s"
        return NginxRedisEngine(self, url, limits, terms or {}, zones or {})

    def __enter__(self) -> Self:
        self.nginx.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._connections:
            connection.close()
        log = self.nginx.log
        self.nginx.stop()
        assert "aborted" not in log, log


class LimitBundle(NamedTuple):
    limits: dict[str, Any]
    scripts: dict[str, str]
    texts: dict[str, str]


def limit_bundle(limits: Sequence[Limit], lockouts: bool = False, pauses: bool = False) -> LimitBundle:
    """Returns the part of a bundle about limits, with the numbers and scripts that Python sends."""
    limits_by_text: dict[str, Any] = {limit.text: bundle_entry(limit) for limit in limits}
    scripts: dict[str, Script] = {}
    algorithms = sorted({limit.algorithm for limit in limits} - {"slots"})
    for algorithm in algorithms:
        commands = ["take", "take_together", "refund", *(["take_calls"] if fits_one_string(algorithm) else [])]
        scripts |= {f"{command} {algorithm}": algorithm_script(command, algorithm) for command in commands}
        scripts[f"refund_paused {algorithm}"] = algorithm_script("refund", algorithm, True)
    for size in range(1, len(algorithms) + 1):
        for some in itertools.combinations(algorithms, size):
            more = ["lockout"] * lockouts + ["pause"] * pauses
            for models in [
                (*some, *each) for size in range(len(more) + 1) for each in itertools.combinations(more, size)
            ]:
                scripts[f"take_all {' '.join(sorted(models))}"] = mixed_script("take_all", models)
    scripts["slots"] = standalone_script("slots", "slots")
    scripts["membership"] = standalone_script("membership")
    texts = {script.sha: script.text for script in scripts.values()}
    return LimitBundle(limits_by_text, {name: script.sha for name, script in scripts.items()}, texts)


class NginxRedisEngine:
    """The engine in nginx, with a bound limit for each rule."""

    def __init__(
        self,
        gate: RedisDriverNginx,
        url: str,
        limits: Mapping[str, str],
        terms: Mapping[str, Any],
        zones: Mapping[str, Any],
    ) -> None:
        self._gate, self.id = gate, f"engine {next(_ids)}"
        self.limits = {name: parse(text) for name, text in limits.items()}
        self.names = list(limits)
        lockouts = any("lockout" in each for each in terms.values())
        pauses = any("pausable" in each for each in terms.values())
        self.bundle = limit_bundle(list(self.limits.values()), lockouts, pauses)
        bound_limits: list[Any] = []
        options: list[Any] = []
        for at, (name, limit) in enumerate(self.limits.items()):
            rule = {"rule": name, "is_shadow": False, "overrides": False, **terms.get(name, {})}
            options.append(rule)
            bound_limits.append({"name": name, "limit": limit.text, "terms": at + 1})
        gate.call_driver(
            "open",
            id=self.id,
            url=url,
            prefix="hg",
            bound_limits=bound_limits,
            terms=options,
            zones=zones,
            **self.bundle._asdict(),
        )

    def do(self, verb: str, **question: Any) -> Any:
        return self._gate.call_driver(verb, id=self.id, **question)

    def charges(self, *charges: tuple[str, str, int]) -> list[Any]:
        return [[self.names.index(name) + 1, key, cost] for name, key, cost in charges]

    def decide(self, *charges: tuple[str, str, int], commit: int = 1, deadline: float | None = None) -> Any:
        return self.do("decide", charges=self.charges(*charges), commit=commit, **_given(deadline))

    def take(self, name: str, key: str, cost: int = 1, deadline: float | None = None) -> Any:
        """The outcome of one charge."""
        return self.decide((name, key, cost), deadline=deadline)[0]

    def about(self, verb: str, charge: tuple[str, str, int], deadline: float | None = None, **more: Any) -> Any:
        return self.do(verb, charge=self.charges(charge)[0], **more, **_given(deadline))


def _given(deadline: float | None) -> dict[str, Any]:
    return {} if deadline is None else {"deadline": deadline}


def keys_of_distinct_masters(masters: int = 3) -> list[str]:
    """One key in each third of the slots."""
    keys: dict[int, str] = {}
    for number in itertools.count():
        keys.setdefault(slot_of(f"k{number}") * masters // 16384, f"k{number}")
        if len(keys) == masters:
            return [keys[part] for part in range(masters)]
    raise AssertionError
