"""Moves a cluster slot between masters, and stops wherever a test wants to look.

    with cluster.moving_slot(slot, target) as move:   the slot is MIGRATING at its source, IMPORTING at its target
        ...                                           keys that are not at the source: ASK
        move.carry("{a}1")
        ...                                           several keys, of which some have gone: TRYAGAIN
                                                      then all keys follow, and everybody is told: MOVED

Without `with`, `finish()` ends the move. A test that kills one of the two in between just does not finish.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from tests.servers.cluster import Cluster, ClusterNode

AT_ONCE = 100
CARRY_MS = 5000


class SlotMove:
    """The move begins when this is made."""

    def __init__(self, cluster: Cluster, slot: int, source: ClusterNode, target: ClusterNode) -> None:
        if source is target:
            raise ValueError(f"slot {slot} is at {target.port} already")
        self.slot = slot
        self.source = source
        self.target = target
        self._cluster = cluster
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def keys(self) -> list[bytes]:
        """Some of the keys still at the source; none when all have gone."""
        match self.source.call("CLUSTER", "GETKEYSINSLOT", self.slot, AT_ONCE):
            case list(found):
                return [key for key in found if isinstance(key, bytes)]
            case reply:
                raise RuntimeError(f"GETKEYSINSLOT answered {reply!r}")

    def carry(self, *keys: str | bytes) -> None:
        """Take these keys over now."""
        password = self.target.password
        login = [] if password is None else ["AUTH", password]
        there = ("127.0.0.1", self.target.port, "", 0, CARRY_MS)
        self.source.call("MIGRATE", *there, *login, "KEYS", *keys)

    def finish(self) -> None:
        """Take over what is left, tell every master, and return when all nodes know."""
        while keys := self.keys():
            self.carry(*keys)
        # The target first: while it only imports, a source that gave the slot away would send callers in circles.
        masters = [self.target, self.source]
        for node in [*masters, *(node for node in self._cluster.masters() if node not in masters)]:
            node.call("CLUSTER", "SETSLOT", self.slot, "NODE", self.target.id)
        self._cluster.await_ok()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()
