"""Faults of deployments in which another server takes over."""

from __future__ import annotations

import time
from itertools import cycle

from tests.chaos.call_record import AMOUNT, KEYS, key_of
from tests.chaos.run_load import ChaosLoad
from tests.servers import Cluster, Sentinels
from tests.servers.cluster import slot_of
from tests.servers.wait_until import until

SETTLE_S = 30


def sentinel_failover(load: ChaosLoad) -> None:
    """The master is killed, and the sentinels put its replica in its place."""
    with Sentinels() as servers, load.on(servers.url, ledger=True):
        load.disturb()
        gone = servers.kill_master()
        began = time.monotonic()

        def no_heir() -> str | None:
            heir = servers.master
            return None if heir is not gone and heir.info("replication")["role"] == "master" else "no heir"

        until(no_heir, SETTLE_S)
        load.back()
        load.notes.append(f"the new master was in place {time.monotonic() - began:.1f} s after the old one died")


def cluster_master(load: ChaosLoad) -> None:
    """A master of a cluster is killed, and its replica takes over its slots."""
    with Cluster() as cluster, load.on(cluster.url, ledger=True):
        load.disturb()
        cluster.kill_master()
        began = time.monotonic()

        def not_served() -> str | None:
            if len(cluster.masters()) < 3:
                return "nobody has taken over"
            ok = [b"cluster_state:ok" in _info(node.call("CLUSTER", "INFO")) for node in cluster.masters()]
            return None if all(ok) else "a master does not call the cluster ok"

        until(not_served, SETTLE_S)
        load.back()
        load.notes.append(f"the cluster was whole again {time.monotonic() - began:.1f} s after the master died")


def resharding(load: ChaosLoad) -> None:
    """The slots of all our keys are moved from master to master, again and again."""
    with Cluster() as cluster, load.on(cluster.url):
        moved, end = 0, time.monotonic() + load.broken
        for slot in cycle(slot_of(key_of(limit, key)) for limit in AMOUNT for key in range(KEYS)):
            masters = cluster.masters()
            owner = masters.index(cluster.master_of(slot))
            cluster.move_slot(slot, masters[(owner + 1) % len(masters)])
            moved += 1
            if time.monotonic() > end:
                break
        load.back()
        load.notes.append(f"{moved} slots were moved")


def _info(reply: object) -> bytes:
    if not isinstance(reply, bytes):
        raise RuntimeError(f"text was expected, and {reply!r} came")
    return reply
