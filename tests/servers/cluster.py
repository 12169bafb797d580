"""A real cluster of one's own: masters and replicas on 127.0.0.1 that a test may kill, fail over and reshard.

It is formed by the plain protocol (MEET, ADDSLOTSRANGE, REPLICATE) and is ready when every node calls it ok, all
agree on who serves what, and every replica is in sync. Starting three masters and three replicas takes 2.1 to
2.2 s, and two of them are the servers' own, who do not call a cluster ok any sooner after a start. A killed master
has an heir 1.5 to 3 s later (at the node timeout of one second); a failover takes 0.1 to 0.7 s, moving a slot
0.05 s.

Law: who is master is never remembered here. It is asked, each time, of the nodes themselves; of two that claim a
slot, the newer claim (the greater config epoch) holds, and a dead or paused node claims nothing.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from types import TracebackType
from typing import Self

from tests.servers.cluster_nodes import ClusterMember, parse_members
from tests.servers.cluster_slot_move import SlotMove
from tests.servers.faulty_proxy import Proxy
from tests.servers.redis_server import RedisServer, free_port, login_of
from tests.servers.server_programs import Kind
from tests.servers.wait_until import until

SLOTS = 16_384
SETTLE_S = 30
# Nodes tell each other the news within half of their timeout: while the cluster is formed, that is kept short.
FORMING_TIMEOUT_MS = 500


class ClusterNode(RedisServer):
    """One node. Only who it is (nodes.conf) survives a restart; its keys do not."""

    def _command_line(self, port: int) -> list[str]:
        if self._port is None:
            self.bus_port = free_port()
        return [*super()._command_line(port), "--cluster-port", str(self.bus_port)]

    @property
    def id(self) -> str:
        return _text(self.call("CLUSTER", "MYID"))

    def view(self) -> list[ClusterMember]:
        """The cluster as this node sees it."""
        return parse_members(_text(self.call("CLUSTER", "NODES")))


class Cluster:
    """`masters` masters with `replicas` replicas each, all alike but for their role.

    `node_timeout_ms` is how long a silent node is waited for before its replica takes over. Without
    `full_coverage`, the rest of a cluster goes on serving while a part of it is dead. `config` are lines of a
    redis.conf for every node.
    """

    def __init__(
        self,
        kind: Kind = "redis",
        *,
        masters: int = 3,
        replicas: int = 1,
        node_timeout_ms: int = 1000,
        full_coverage: bool = True,
        password: str | None = None,
        config: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self._count = masters
        self._node_timeout_ms = node_timeout_ms
        lines = [
            "cluster-enabled yes",
            "cluster-announce-ip 127.0.0.1",
            f"cluster-node-timeout {node_timeout_ms}",
            f"cluster-require-full-coverage {'yes' if full_coverage else 'no'}",
            # However old a replica's data, it takes over; and replicas stay with the master they were given.
            "cluster-replica-validity-factor 0",
            "cluster-allow-replica-migration no",
            "repl-diskless-sync yes",
            "repl-diskless-sync-delay 0",
            *([] if password is None else [f"masterauth {password}"]),
            *config,
        ]
        total = masters * (1 + replicas)
        self.nodes = [ClusterNode(kind, password=password, config=lines) for _ in range(total)]

    @property
    def url(self) -> str:
        """All nodes are seeds."""
        seeds = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redis+cluster://{login_of(self.nodes[0].password)}{seeds}/0"

    def start(self) -> Self:
        """Start all nodes, make them one cluster, and return once it serves every slot."""
        for node in self.nodes:
            node.start()
        self._set_timeout(FORMING_TIMEOUT_MS)
        masters, replicas = self.nodes[: self._count], self.nodes[self._count :]
        for number, node in enumerate(self.nodes):
            # Epochs all different from the start: otherwise the nodes first quarrel about who is who.
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for number, node in enumerate(masters):
            first, beyond = (SLOTS * edge // len(masters) for edge in (number, number + 1))
            node.call("CLUSTER", "ADDSLOTSRANGE", first, beyond - 1)
        # Everybody meets everybody: by hearsay alone it would take seconds.
        for number, node in enumerate(self.nodes):
            for other in self.nodes[:number]:
                node.call("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus_port)
        until(self._not_met, SETTLE_S)
        for number, replica in enumerate(replicas):
            replica.call("CLUSTER", "REPLICATE", masters[number % len(masters)].id)
        self.await_ok()
        self._set_timeout(self._node_timeout_ms)
        return self

    def masters(self) -> list[ClusterNode]:
        """The nodes that serve slots now, in the order of their slots. A dead master is not among them."""
        served: dict[ClusterNode, list[int]] = {}
        for slot, node in sorted(self._owners().items(), key=itemgetter(0)):
            served.setdefault(node, []).append(slot)
        # By the middle of what it serves: a single moved slot does not change the order.
        return sorted(served, key=lambda node: served[node][len(served[node]) // 2])

    def master_of(self, key_or_slot: str | bytes | int) -> ClusterNode:
        """The node that serves a key, or a slot, now."""
        slot = key_or_slot if isinstance(key_or_slot, int) else slot_of(key_or_slot)
        node = self._owners().get(slot)
        if node is None:
            raise RuntimeError(f"no live node serves slot {slot} now")
        return node

    def replicas_of(self, master: ClusterNode) -> list[ClusterNode]:
        """The live replicas of a master, as they say themselves."""
        return [node for node in self._awake() if _myself(node).master_id == master.id]

    def kill_master(self, index: int = 0) -> ClusterNode:
        """Kill (SIGKILL) one of `masters()`, and name it. `await_ok()` waits for its heir."""
        victim = self.masters()[index]
        victim.kill()
        return victim

    def failover(self, replica: ClusterNode) -> None:
        """Let a replica change places with its living master; return when all know it."""
        replica.call("CLUSTER", "FAILOVER")
        until(lambda: None if replica in self.masters() else f"{replica.port} is not yet a master", SETTLE_S)
        self.await_ok()

    def moving_slot(self, slot: int, to: ClusterNode) -> SlotMove:
        """Begin to move a slot, and stay in the middle: see SlotMove."""
        return SlotMove(self, slot, self.master_of(slot), to)

    def move_slot(self, slot: int, to: ClusterNode) -> None:
        """Move a slot with its keys to another master, live; return when all know it."""
        self.moving_slot(slot, to).finish()

    @contextmanager
    def faulty_link(self, node: ClusterNode) -> Iterator[Proxy]:
        """Until the block ends, the cluster sends callers to this node by way of a Proxy.

        A master's replicas come that way too. What the nodes have to say to each other goes another, so a fault
        here is one that the cluster does not see: nobody takes over.
        """
        with Proxy(node) as link:
            self._announce(node, link.port)
            try:
                yield link
            finally:
                link.heal()
                self._announce(node, node.port)

    def restart(self, node: ClusterNode) -> None:
        """A new process in place of a node, dead or alive; return when it is a member again and in sync."""
        node.restart()
        self.await_ok()

    def heal(self) -> None:
        """Start what is dead and resume what is paused; return when the cluster is whole."""
        if all(node.awake for node in self.nodes):
            return
        for node in self.nodes:
            if not node.alive:
                node.start()
            elif not node.awake:
                node.resume()
        self.await_ok()

    def flush(self) -> None:
        """Forget every key, on all masters; the replicas follow. Cached scripts stay."""
        for node in self._awake():
            if node.info("replication")["role"] == "master":
                node.flush()

    def script_flush(self) -> None:
        """Forget every script, on all nodes."""
        for node in self._awake():
            node.call("SCRIPT", "FLUSH", "SYNC")

    def await_ok(self, seconds: float = SETTLE_S) -> None:
        """Return when the living nodes agree, serve every slot between them, and their replicas are in sync."""
        until(self._unsettled, seconds)

    def stop(self) -> None:
        """End every node at once, as a crash would. `heal()` brings them back, the same cluster without a key."""
        for node in self.nodes:
            node.kill()

    def close(self) -> None:
        """End every node and remove their folders."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            return self if self._awake() else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _awake(self) -> list[ClusterNode]:
        return [node for node in self.nodes if node.awake]

    def _owners(self) -> dict[int, ClusterNode]:
        claims = [(_myself(node), node) for node in self._awake()]
        owners: dict[int, ClusterNode] = {}
        for claim, node in sorted(claims, key=lambda pair: pair[0].epoch):
            if claim.is_master:
                owners.update(dict.fromkeys(claim.slots(), node))
        return owners

    def _announce(self, node: ClusterNode, port: int) -> None:
        node.call("CONFIG", "SET", "cluster-announce-port", port)
        name = node.id

        def unheard() -> str | None:
            announced = all(
                (name, port) in {(member.id, member.port) for member in other.view()} for other in self._awake()
            )
            return None if announced else f"not all nodes have heard that {node.port} is now called at {port}"

        until(unheard, SETTLE_S)
        self.await_ok()

    def _set_timeout(self, node_timeout_ms: int) -> None:
        for node in self.nodes:
            node.call("CONFIG", "SET", "cluster-node-timeout", node_timeout_ms)

    def _not_met(self) -> str | None:
        for node in self.nodes:
            met = [member for member in node.view() if member.is_introduced]
            if len(met) < len(self.nodes):
                return f"{node.port} knows {len(met)} of {len(self.nodes)} nodes"
        return None

    def _unsettled(self) -> str | None:
        awake = self._awake()
        ids = {node.id for node in awake}
        pictures = set()
        for node in awake:
            if "cluster_state:ok" not in _text(node.call("CLUSTER", "INFO")):
                return f"{node.port} does not call the cluster ok"
            view = [member for member in node.view() if member.id in ids]
            if not all(member.is_well for member in view):
                return f"{node.port} does not reach every living node"
            pictures.add(frozenset((member.id, member.master_id, member.ranges) for member in view))
            replication = node.info("replication")
            if replication["role"] == "slave" and replication["master_link_status"] != "up":
                return f"the replica {node.port} is not in sync"
        if len(pictures) > 1:
            return "the nodes do not agree on who serves what"
        owners = self._owners()
        orphan = next((slot for slot in range(SLOTS) if slot not in owners), None)
        return None if orphan is None else f"nobody serves slot {orphan}"


def slot_of(key: str | bytes) -> int:
    """The slot of a key: only what stands in its first {...} counts, where something does."""
    raw = key.encode() if isinstance(key, str) else key
    tag = raw.partition(b"{")[2].partition(b"}")
    return binascii.crc_hqx(tag[0] if tag[0] and tag[1] else raw, 0) % SLOTS


def _myself(node: ClusterNode) -> ClusterMember:
    return next(member for member in node.view() if "myself" in member.flags)


def _text(reply: object) -> str:
    if not isinstance(reply, bytes):
        raise RuntimeError(f"text was expected, and {reply!r} came")
    return reply.decode()
