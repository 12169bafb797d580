"""Sends random sequences of frames to the state machine of the gRPC server, without sockets and with turned time.

A sequence mixes whole calls with frames that are broken, doubled, out of order or random, cut anywhere, while
handlers end, wait and stream. After each one the client stays away or leaves. Laws: nothing raises; within the
time limits every call has ended, but for streams and handlers that wait; when the connection ends nothing is
held, no handler runs, and no more objects are alive than before.

    python -m tests.fuzz --kind http2 --inputs 100000 --seed 7
"""

from __future__ import annotations

import gc
from random import Random

from tests.fuzz.http2_frame_builder import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    header_block,
)
from tests.fuzz.mutate import mutate_bytes
from tests.service.grpc_server.http2_peer import ACK, DrivenLoop, Http2Peer, head, message, prefixed

_PATHS = ["/test/Echo"] * 4 + [
    "/test/Large",
    "/test/Noted",
    "/test/Fail",
    "/test/Wait",
    "/test/Chat",
    "/x",
    "/\xff",
    "",
]
_MESSAGES = [b"hi"] * 4 + [b"", b"fail", b"slow", b"large", b"x" * 16_000]
_NUMBERS = [0, 1, 5, 100, 65_535, 2**31 - 1, 2**31, 2**32 - 1]
_GROWTH = 2000  # objects, among a hundred thousand
_MEASURED_AFTER = 500


class SequenceFailure(Exception):
    """A law that did not hold, and how to see it again."""


def make_sequence(rng: Random) -> list[bytes]:
    """The pieces in which a client's bytes arrive."""
    frames = [PREFACE, frame(SETTINGS, 0, 0)] + [ACK] * (rng.random() < 0.8)
    last = 1
    for _ in range(rng.randint(1, 12)):
        stream = rng.choice((last, last, max(1, last - 2), rng.randrange(2**32)))
        frames += _call(rng, last) if rng.random() < 0.5 else [_frame(rng, stream)]
        last += rng.choice((0, 2, 2, 2, 4))
    if rng.random() < 0.1:
        rng.shuffle(frames)
    data = b"".join(frames)
    if rng.random() < 0.3:
        data = mutate_bytes(rng, data)
    if rng.random() < 0.5:
        return [data]
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randint(1, 8)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _call(rng: Random, stream: int) -> list[bytes]:
    more = {}
    if rng.random() < 0.3:
        field = rng.choice(("grpc_timeout", "content_length", "grpc_encoding", "x", "content_type", "te"))
        more[field] = rng.choice(("1S", "7", "gzip", "0n", "identity", "application/json", "y" * 3000))
    begun = head(stream, rng.choice(_PATHS), end=rng.random() < 0.1, **more)
    content = b"".join(prefixed(rng.choice(_MESSAGES)) for _ in range(rng.choice((1, 1, 1, 1, 0, 2, 5))))
    if rng.random() < 0.1:
        content = mutate_bytes(rng, content)
    parts = [content[at : at + 16_384] for at in range(0, len(content), 16_384)] or [b""]
    ends = END_STREAM if rng.random() < 0.9 else 0
    sent = [frame(DATA, ends if part is parts[-1] else 0, stream, part) for part in parts]
    if rng.random() < 0.15:
        sent.insert(rng.randrange(len(sent) + 1), frame(RST, 0, stream, b"\0\0\0\x08"))
    return [begun, *sent]


def _frame(rng: Random, stream: int) -> bytes:
    number = rng.choice(_NUMBERS).to_bytes(4, "big")
    match rng.randrange(12):
        case 0:
            settings = [bytes((0, rng.randrange(8))) + rng.choice(_NUMBERS).to_bytes(4, "big") for _ in range(3)]
            return frame(SETTINGS, 0, 0, b"".join(settings[rng.randrange(4) :]))
        case 1:
            return frame(WINDOW, 0, rng.choice((0, stream)), number)
        case 2:
            return frame(PING, rng.randrange(2), 0, rng.randbytes(8)) * rng.choice((1, 1, 3000))
        case 3:
            return frame(RST, 0, stream, number) * rng.choice((1, 2))
        case 4:
            return frame(GOAWAY, 0, 0, rng.randbytes(rng.choice((8, 8, 20, 3))))
        case 5:
            return frame(PRIORITY, 0, stream, rng.randbytes(rng.choice((5, 5, 4))))
        case 6:
            block = header_block([(rng.randbytes(3), rng.randbytes(5))])
            return frame(HEADERS, rng.choice((0, 1, 4, 5, 0xFF)), stream, block)
        case 7:
            return frame(HEADERS, END_HEADERS, stream, rng.randbytes(rng.randrange(40)))
        case 8:
            return frame(CONTINUATION, rng.choice((0, 4)), stream, rng.randbytes(rng.randrange(20)))
        case 9:
            return frame(DATA, rng.choice((0, 1, 8, 9)), stream, rng.randbytes(rng.choice((0, 1, 7, 300))))
        case 10:
            return message(stream, b"hi", end=rng.random() < 0.5)
    return frame(rng.randrange(14), rng.randrange(256), stream, rng.randbytes(rng.randrange(30)))


def run_sequence(loop: DrivenLoop, rng: Random) -> None:
    """Plays one sequence; raises AssertionError if a law does not hold."""
    with Http2Peer(hello=False, loop=loop) as peer:
        connection = peer.connection
        for piece in make_sequence(rng):
            peer.send(piece)
            if rng.random() < 0.3:
                peer.turn()
            for future in peer.methods.waiting:
                if rng.random() < 0.3 and not future.done():
                    future.set_result(b"hi")
        if rng.random() < 0.2:
            connection.leave(loop.now)
        if rng.random() < 0.3:
            for _ in range(5):  # it lives, and does no more
                peer.wait(15)
                peer.send(frame(PING, 0, 0, b"12345678"))
            waits = peer.methods.running
            assert len(connection.streams) <= waits, f"calls did not end: {connection.streams}"
        if rng.random() < 0.3:
            connection.cut_off()
            assert connection.closed
        connection.lost()
        peer.turn()
        assert not connection.streams
        assert not connection.sender.blocked
        assert connection.held_bytes == 0
        assert peer.methods.running == 0, "a handler was not left"


def fuzz_sequences(count: int, seed: int, first: int = 0) -> None:
    loop = DrivenLoop()
    faults: list[str] = []
    loop.set_exception_handler(lambda _, context: faults.append(str(context)))
    alive = 0
    try:
        for number in range(first, first + count):
            try:
                run_sequence(loop, Random(f"{seed}/http2/{number}"))
                assert not faults, faults[0]
            except Exception as error:
                again = f"python -m tests.fuzz --kind http2 --seed {seed} --only {number}"
                raise SequenceFailure(f"sequence {number}: {error!r}\nAgain: {again}") from error
            if number - first == _MEASURED_AFTER:
                alive = _alive()
        if alive and (grown := _alive() - alive) > _GROWTH:
            raise SequenceFailure(f"{grown} objects more are alive after {count} sequences of seed {seed}")
    finally:
        loop.close()


def _alive() -> int:
    gc.collect()
    return len(gc.get_objects())
