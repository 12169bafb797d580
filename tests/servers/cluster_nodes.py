"""Parses the reply of CLUSTER NODES."""

from collections.abc import Iterator
from typing import NamedTuple

NO_MASTER = "-"


class ClusterMember(NamedTuple):
    """One line of it. `ranges` are the slots a member serves; a replica serves none and has a `master_id`."""

    id: str
    port: int
    flags: frozenset[str]
    master_id: str | None
    epoch: int
    ranges: frozenset[tuple[int, int]]

    @property
    def is_master(self) -> bool:
        return "master" in self.flags

    @property
    def is_introduced(self) -> bool:
        return not self.flags & {"handshake", "noaddr"}

    @property
    def is_well(self) -> bool:
        return self.is_introduced and not self.flags & {"fail", "fail?"}

    def slots(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)


def parse_members(text: str) -> list[ClusterMember]:
    """All lines of a reply."""
    return [_member(line.split(" ")) for line in text.splitlines()]


def _member(words: list[str]) -> ClusterMember:
    name, address, flags, master, _ping, _pong, epoch, _link, *served = words
    return ClusterMember(
        id=name,
        port=int(address.partition("@")[0].rpartition(":")[2]),
        flags=frozenset(flags.split(",")),
        master_id=None if master == NO_MASTER else master,
        epoch=int(epoch),
        # A slot on the move stands there a second time, in brackets.
        ranges=frozenset(_range(word) for word in served if not word.startswith("[")),
    )


def _range(word: str) -> tuple[int, int]:
    first, dash, last = word.partition("-")
    return int(first), int(last if dash else first)
