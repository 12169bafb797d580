"""The common part of the sync and the async engine: the servers, the deadline, and how both are described.

Meters share the limit with its requests. An engine adds only how it sends a request and waits for the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

from headgate.algorithms.decision import Outcome
from headgate.algorithms.limit import Limit
from headgate.clock import Clock, SystemClock
from headgate.engines.charge_options import ChargeOptions
from headgate.engines.deadlines import shortest_deadline, with_deadline
from headgate.engines.quota_ledger import GrantExpiries
from headgate.engines.redis import cross_slot, keys, redirects
from headgate.engines.redis.errors import RedisError, engine_failure
from headgate.engines.redis.joint_takes import MAX_JOINT_METERS, JointBuilder, can_take_jointly
from headgate.engines.redis.protocol import RedisRequest, RequestBuilder
from headgate.engines.redis.topology import Topology, topology
from headgate.engines.stack import InnermostEngine
from headgate.engines.url_options import DEFAULT_DEADLINE_S
from headgate.errors import CorruptState, EngineUnavailable, InvalidCharge
from headgate.flow import Flow

NO_JOINT_METER: Any = object()
GUARANTEE = "decided there, by one script and the server's clock, the same for every process"


class ServerEngine(InnermostEngine):
    """An engine that decides inside Redis or Valkey."""

    def __init__(
        self, url: str, *, prefix: str = "hg", clock: Clock | None = None, deadline: float = DEFAULT_DEADLINE_S
    ) -> None:
        self.prefix = prefix
        self.clock: Clock = clock or SystemClock()
        self.deadline: float = deadline
        self.topology: Topology = topology(url)
        self._reported_grants: dict[str, GrantExpiries] = {}
        self.joint_meters: dict[tuple[Any, ...], Any] = {}  # by the meters that decide a call together

    def execute(self, request: RedisRequest, deadline: float | None = None) -> Any:
        """Sends a request and returns the reply, within `deadline` seconds, at most the engine's own."""
        raise NotImplementedError

    def execute_all(self, requests: Sequence[RedisRequest], deadlines: Sequence[float | None] = ()) -> Any:
        """Sends several requests at once, to several servers; an error takes the place of a reply."""
        raise NotImplementedError

    def shard(self, key: str) -> Hashable:
        return 0 if self.topology.any_keys_together else self.topology.owner(keys.escape_key(key))

    def describe_shard(self, shard: Hashable) -> str:
        return f"Redis at {self.topology.text if shard == 0 else shard}"

    def guarantees(self, limit: Limit, nodes: int) -> Iterator[tuple[str, str]]:
        yield "engine", f"{self.topology.text}: {GUARANTEE}; no call waits longer than {self.deadline:g} s"

    def reported_grants(self, name: str) -> GrantExpiries:
        """Returns the grants of a limit that this process has reported."""
        return self._reported_grants.setdefault(name, GrantExpiries())

    def bind_jointly(self, meters: tuple[Any, ...], kind: type[ServerMeter], bind: Callable[..., Any]) -> Any:
        """Returns what takes from them jointly, as `bind` makes it; NO_JOINT_METER if they need take_all."""
        joint = NO_JOINT_METER
        if self.topology.any_keys_together and all(isinstance(meter, kind) for meter in meters):
            builders = [meter.builder for meter in meters]
            if can_take_jointly(builders):
                joint = bind(self, JointBuilder(builders), shortest_deadline(meters))
        if len(self.joint_meters) >= MAX_JOINT_METERS:
            self.joint_meters.clear()
        self.joint_meters[meters] = joint
        return joint

    def decide_flow(
        self,
        charges: Sequence[tuple[Any, str, int]],
        kind: type[ServerMeter],
        patience_us: int | None,
        commit: bool,
    ) -> Flow[list[Outcome]]:
        """Returns the flow that decides charges together; their meters are of this kind."""
        built = [(meter.builder, key, cost) for meter, key, cost in charges if isinstance(meter, kind)]
        if len(built) != len(charges):
            raise InvalidCharge("A charge of another engine cannot be decided here.")
        now_us, deadline = self.clock.now_us(), shortest_deadline([meter for meter, _, _ in charges])
        execute = with_deadline(self.execute, deadline)
        if self.topology.any_keys_together:
            return redirects.decide_all(execute, built, patience_us, now_us, commit)
        return cross_slot.decide_by_slot(execute, self.execute_all, built, patience_us, now_us, commit, deadline)

    def failure(self, error: RedisError) -> EngineUnavailable | CorruptState:
        """Returns the error that callers get."""
        return engine_failure(
            self.topology.text, self.prefix, error, self.topology.other_url, self.topology.without_tls
        )


class ServerMeter:
    """A limit bound to a server, with the requests about it."""

    def __init__(
        self, engine: ServerEngine, limit: Limit, name: str, options: ChargeOptions | None = None
    ) -> None:
        self.limit = limit
        self.name = name
        self.options = options
        self.builder: RequestBuilder = RequestBuilder(limit, name, engine.prefix, options)
        self._deadline = shortest_deadline([self])
        self._execute = with_deadline(engine.execute, self._deadline)
        self._now_us = engine.clock.now_us
