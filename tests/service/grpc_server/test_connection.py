"""The state machine of a connection: what RFC 9113 asks of a server, case by case, and bounds for hostile peers.

The cases are those of the tool h2spec, as far as they apply; frames are sent without sockets, and time is turned.
"""

from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.service.grpc_server import connection as bounds
from headgate.service.grpc_server import frame_budget
from headgate.service.grpc_server.request_heads import MAX_CACHED_HEADS
from headgate.service.grpc_server.streams import Http2Stream
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
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    frame,
    header_block,
)
from tests.service.grpc_server.http2_peer import ACK, OK, Http2Peer, head, message, prefixed

FIELDS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/test/Echo")]
BLOCK = header_block([*FIELDS, (b"content-type", b"application/grpc")])
ECHO = head(1) + message(1)


def headers(block: bytes, *, stream: int = 1, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block)


def fields(*more: tuple[bytes, bytes], without: bytes = b"") -> bytes:
    kept = [pair for pair in FIELDS if pair[0] != without]
    return headers(header_block([*kept, (b"content-type", b"application/grpc"), *more]))


def setting(number: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, number.to_bytes(2, "big") + value.to_bytes(4, "big"))


def window(stream: int, size: int) -> bytes:
    return frame(WINDOW, 0, stream, size.to_bytes(4, "big"))


# Requests that are answered.


def test_a_call_is_answered_however_its_bytes_are_cut() -> None:
    for size in (1, 2, 9, 10, 1000):
        with Http2Peer(hello=False) as peer:
            sent, seen = PREFACE + frame(SETTINGS, 0, 0) + ECHO + head(3) + message(3), []
            for at in range(0, len(sent), size):
                seen += peer.send(sent[at : at + size])
            assert seen == OK * 2
            assert not peer.connection.streams


@pytest.mark.parametrize(
    "sent",
    [
        [frame(HEADERS, 0, 1, BLOCK[:9]), frame(CONTINUATION, 0, 1, BLOCK[9:20]),
         frame(CONTINUATION, END_HEADERS, 1, BLOCK[20:]), message(1)],
        [frame(HEADERS, END_HEADERS | 8, 1, b"\x03" + BLOCK + b"\0" * 3), message(1)],
        [frame(HEADERS, END_HEADERS | 0x20, 1, b"\0\0\0\0\x10" + BLOCK), message(1)],
        [frame(HEADERS, END_HEADERS | 0x28, 1, b"\x02\0\0\0\0\x10" + BLOCK + b"\0\0"), message(1)],
        [headers(BLOCK), frame(DATA, END_STREAM | 8, 1, b"\x04" + prefixed(b"hi") + b"\0" * 4)],
        [headers(BLOCK), message(1, end=False), frame(DATA, END_STREAM, 1)],
        [headers(BLOCK), frame(DATA, 0, 1, prefixed(b"hi")[:3]), frame(DATA, END_STREAM, 1, prefixed(b"hi")[3:])],
        [headers(BLOCK), message(1, end=False),
         frame(HEADERS, END_HEADERS | END_STREAM, 1, header_block([(b"x", b"y")]))],
        [frame(PRIORITY, 0, 1, b"\0\0\0\x03\x10"), ECHO],
        [frame(99, 255, 7, b"unknown"), ECHO],
        [setting(99, 1), ECHO],
        [setting(5, 2**24 - 1), setting(2, 0), setting(1, 0), ECHO],
        [window(0, 2**31 - 1 - 65_535), ECHO],
        [headers(BLOCK), window(1, 5), message(1)],
        [frame(HEADERS, END_HEADERS, (1 << 31) + 1, BLOCK), message(1)],
        [fields((b"content-length", b"7")), message(1)],
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_unusual_and_allowed(sent: list[bytes]) -> None:
    with Http2Peer() as peer:
        assert peer.send(*sent) == OK


def test_pings_and_settings_are_acknowledged() -> None:
    with Http2Peer() as peer:
        assert peer.send(frame(PING, 0, 0, b"12345678"), frame(PING, 1, 0, b"12345678")) == ["PING ack"]
        peer.connection.receive(setting(3, 5), 0)
        assert peer.connection.take_output() == ACK


# What breaks the protocol.


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"GET / HTTP/1.1\r\nhost: h\r\n\r\n", "PROTOCOL_ERROR"),
        (PREFACE + frame(PING, 0, 0, b"12345678"), "PROTOCOL_ERROR"),
        (PREFACE + ACK, "PROTOCOL_ERROR"),
    ],
    ids=range(3),
)
def test_what_does_not_begin_as_http_2(sent: bytes, code: str) -> None:
    with Http2Peer(hello=False) as peer:
        assert peer.send(sent) == [f"GOAWAY {code}"]
        assert peer.connection.closed


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        # Frames: sizes and streams.
        (frame(DATA, 0, 1, b"x" * 16_385), "FRAME_SIZE"),
        (frame(HEADERS, END_HEADERS, 1, b"x" * 16_385), "FRAME_SIZE"),
        (frame(DATA, 0, 0, b"x"), "PROTOCOL"),
        (frame(DATA, 0, 1, b"x"), "PROTOCOL"),
        (frame(HEADERS, END_HEADERS, 0, BLOCK), "PROTOCOL"),
        (frame(HEADERS, END_HEADERS, 2, BLOCK), "PROTOCOL"),
        (head(5) + head(3), "STREAM_CLOSED"),
        (ECHO + head(1), "STREAM_CLOSED"),
        (headers(BLOCK) + frame(DATA, 8, 1, b"\x05abc"), "PROTOCOL"),
        (frame(HEADERS, END_HEADERS | 8, 1, b"\xff" + BLOCK), "PROTOCOL"),
        (frame(HEADERS, END_HEADERS | 0x20, 1, b"\0\0"), "FRAME_SIZE"),
        (frame(HEADERS, END_HEADERS | 0x20, 1, b"\0\0\0\x01\0" + BLOCK), "PROTOCOL"),
        (frame(PRIORITY, 0, 0, b"\0\0\0\x03\0"), "PROTOCOL"),
        (frame(PRIORITY, 0, 1, b"\0\0\0\x01\0"), "PROTOCOL"),
        (frame(RST, 0, 1, b"\0\0\0\0"), "PROTOCOL"),
        (frame(RST, 0, 0, b"\0\0\0\0"), "PROTOCOL"),
        (headers(BLOCK) + frame(RST, 0, 1, b"\0\0\0"), "FRAME_SIZE"),
        (frame(SETTINGS, 0, 1), "PROTOCOL"),
        (frame(SETTINGS, 1, 0, b"\0" * 6), "FRAME_SIZE"),
        (frame(SETTINGS, 0, 0, b"\0" * 5), "FRAME_SIZE"),
        (setting(2, 2), "PROTOCOL"),
        (setting(4, 2**31), "FLOW_CONTROL"),
        (setting(5, 16_383), "PROTOCOL"),
        (setting(5, 2**24), "PROTOCOL"),
        (headers(BLOCK) + window(1, 2**31 - 1 - 65_535) + setting(4, 65_536), "FLOW_CONTROL"),
        (frame(PUSH, END_HEADERS, 1, b"\0\0\0\x02" + BLOCK), "PROTOCOL"),
        (frame(PING, 0, 1, b"12345678"), "PROTOCOL"),
        (frame(PING, 0, 0, b"1234567"), "FRAME_SIZE"),
        (frame(GOAWAY, 0, 1, b"\0" * 8), "PROTOCOL"),
        (frame(GOAWAY, 0, 0, b"\0" * 7), "FRAME_SIZE"),
        (window(0, 0), "PROTOCOL"),
        (window(0, 2**31 - 1), "FLOW_CONTROL"),
        (window(1, 1), "PROTOCOL"),
        (frame(WINDOW, 0, 0, b"\0\0\1"), "FRAME_SIZE"),
        (frame(CONTINUATION, END_HEADERS, 1, BLOCK), "PROTOCOL"),
        (frame(HEADERS, 0, 1, BLOCK) + frame(DATA, 0, 1, b""), "PROTOCOL"),
        (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, END_HEADERS, 3, b""), "PROTOCOL"),
        (frame(HEADERS, 0, 1, BLOCK) + frame(99, 0, 0, b""), "PROTOCOL"),
        # Header blocks.
        (headers(b"\xff\xff\xff\xff\xff"), "COMPRESSION"),
        (headers(b"\x00\xff"), "COMPRESSION"),
        (headers(b"\xbf"), "COMPRESSION"),
        (headers(b"\x3f\xe1\x1f" + BLOCK), "COMPRESSION"),
        (headers(BLOCK + b"\x20"), "COMPRESSION"),
    ],
    ids=range(43),
)
def test_what_closes_the_connection(sent: bytes, code: str) -> None:
    with Http2Peer() as peer:
        expected = code if code == "STREAM_CLOSED" else f"{code}_ERROR"
        assert peer.send(sent)[-1] == f"GOAWAY {expected}"
        assert peer.connection.closed
        assert not peer.connection.streams
        assert peer.send(ECHO) == []


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (fields((b"X", b"y")), "PROTOCOL_ERROR"),
        (fields((b"x\xf9", b"y")), "PROTOCOL_ERROR"),
        (fields((b"x", b"a\nb")), "PROTOCOL_ERROR"),
        (fields((b"x", b" y")), "PROTOCOL_ERROR"),
        (fields((b"x", b"y ")), "PROTOCOL_ERROR"),
        (fields((b":path", b"/again")), "PROTOCOL_ERROR"),
        (fields((b":status", b"200")), "PROTOCOL_ERROR"),
        (headers(header_block([(b"x", b"y"), *FIELDS])), "PROTOCOL_ERROR"),
        *((fields(without=name), "PROTOCOL_ERROR") for name, _ in FIELDS),
        (headers(header_block([*FIELDS[:2], (b":path", b"")])), "PROTOCOL_ERROR"),
        (fields((b"connection", b"close")), "PROTOCOL_ERROR"),
        (fields((b"transfer-encoding", b"chunked")), "PROTOCOL_ERROR"),
        (fields((b"te", b"gzip")), "PROTOCOL_ERROR"),
        (fields((b"content-length", b"-7")), "PROTOCOL_ERROR"),
        (fields((b"content-length", b"8")) + message(1), "PROTOCOL_ERROR"),
        (fields((b"content-length", b"6")) + message(1), "PROTOCOL_ERROR"),
        (fields((b"content-length", b"9")) + message(1, end=False) + frame(DATA, 1, 1, b"x"), "PROTOCOL_ERROR"),
        (headers(BLOCK) + headers(BLOCK), "PROTOCOL_ERROR"),
        (headers(BLOCK) + headers(header_block([(b"x", b"y")])), "PROTOCOL_ERROR"),
        (headers(BLOCK) + headers(header_block([(b":path", b"y")]), flags=5), "PROTOCOL_ERROR"),
        (headers(BLOCK) + window(1, 0), "PROTOCOL_ERROR"),
        (headers(BLOCK) + window(1, 2**31 - 1), "FLOW_CONTROL_ERROR"),
        (headers(BLOCK) + frame(PRIORITY, 0, 1, b"\0\0\0\0"), "FRAME_SIZE_ERROR"),
        (headers(BLOCK) + frame(RST, 0, 1, b"\0\0\0\x08") + frame(DATA, 0, 1, b"x"), "STREAM_CLOSED"),
        (head(1, "/test/Wait") + message(1) + frame(DATA, 0, 1, b"x"), "STREAM_CLOSED"),
        (headers(BLOCK) + frame(DATA, 0, 1, b"\0\0\1\0\0" + b"x" * 16_000) + frame(DATA, 0, 1, b"x" * 16_384) * 2
         + setting(4, 1) + frame(DATA, 0, 1, b"x" * 16_384) * 6, "FLOW_CONTROL_ERROR"),
    ],
    ids=range(28),
)  # fmt: skip
def test_what_resets_its_stream_only(sent: bytes, code: str) -> None:
    with Http2Peer() as peer:
        seen = peer.send(sent)
        if code == "FLOW_CONTROL_ERROR" and "WINDOW_UPDATE" in str(seen):
            return  # it was credited in time
        assert f"RST_STREAM {code}" in seen
        assert peer.send(head(3) + message(3)) == OK


def test_frames_of_a_stream_that_was_reset_are_ignored() -> None:
    with Http2Peer() as peer:
        assert peer.send(head(1, "/nobody")) == [
            "HEADERS end 200 grpc-status=12 grpc-message=There is no such method here.", "RST_STREAM NO_ERROR"
        ]  # fmt: skip
        assert peer.send(message(1, end=False), headers(header_block([(b"x", b"y")]), flags=5), window(1, 1)) == []
        assert peer.send(head(3) + message(3)) == OK


# Flow control.


def test_no_more_is_sent_than_both_windows_allow() -> None:
    with Http2Peer() as peer:
        peer.send(setting(4, 10))
        assert peer.send(head(1, "/test/Large") + message(1)) == ["HEADERS 200", "DATA 10"]
        assert peer.send(window(1, 5)) == ["DATA 5"]
        assert peer.send(setting(4, 1)) == []
        assert peer.send(window(1, 8)) == []  # the window was negative
        assert peer.send(window(1, 2)) == ["DATA 1"]
        seen = peer.send(window(1, 100_000))
        assert seen == ["DATA 16384", "DATA 16384", "DATA 7221", "HEADERS end grpc-status=0"]
        assert 10 + 5 + 1 + 16_384 + 16_384 + 7221 == 5 + 2 * 20_000


def test_streams_wait_for_the_connections_window_in_turn() -> None:
    with Http2Peer() as peer:
        seen = peer.send(*(head(number, "/test/Large") + message(number) for number in (1, 3)))
        assert sum(int(line.split()[1]) for line in seen if line.startswith("DATA")) == 65_535
        assert peer.send(window(0, 100)) == ["DATA 100"]
        seen = peer.send(window(0, 100_000))
        assert seen.count("HEADERS end grpc-status=0") == 1
        assert not peer.connection.streams
        assert not peer.connection.sender.blocked


def test_what_is_received_is_credited() -> None:
    with Http2Peer() as peer:
        content, window_left = prefixed(b"x" * 65_536), 65_535
        peer.send(head(1))
        seen: list[str] = []
        for at in range(0, len(content), 1000):
            part = content[at : at + 1000]
            window_left -= len(part)
            assert window_left >= 0
            came = peer.send(frame(DATA, END_STREAM if at + 1000 >= len(content) else 0, 1, part))
            window_left += sum(int(line.split()[1]) for line in came if line.startswith("WINDOW"))
            seen += came
        assert sum(line.startswith("WINDOW_UPDATE") for line in seen) == 1, "and not one for each frame"
        assert seen[-1].startswith("DATA"), "the response waits for a window"
        assert peer.connection.held_bytes == 0


# Heads.


def test_a_head_that_comes_again_is_not_decoded_again() -> None:
    with Http2Peer() as peer:
        by_block = peer.connection.context.heads.by_block
        assert peer.send(ECHO) == OK
        assert len(by_block) == 1
        for number in range(3, 50, 2):
            assert peer.send(head(number) + message(number)) == OK
        assert len(by_block) == 1
        for number in range(51, 51 + 2 * (MAX_CACHED_HEADS + 10), 2):
            peer.send(head(number, x=str(number)) + message(number))
        assert len(by_block) < MAX_CACHED_HEADS
        peer.send(head(10_001, x="y" * 5000) + message(10_001))
        assert max(map(len, by_block)) < 1024, "long ones are not cached"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["/test/Echo", "/test/Fail", "/test/Chat", "/none"]),
            st.dictionaries(
                st.sampled_from(
                    ["grpc_timeout", "grpc_encoding", "content_length", "content_type", "te", "x", "add"]
                ),
                st.sampled_from(
                    ["1S", "0n", "gzip", "identity", "7", "8", "application/grpc+proto", "trailers", ""]
                ),
            ),
        ),
        max_size=5,
    )
)
def test_a_cached_head_is_the_one_that_would_be_decoded(calls: list[tuple[str, dict[str, Any]]]) -> None:
    with Http2Peer() as cached, Http2Peer(confirm=False) as decoded:
        for number, (path, extra) in enumerate(calls + calls):
            stream = 2 * number + 1
            sent = head(stream, path, **extra) + message(stream)
            seen = [peer.send(sent) + peer.turn() for peer in (cached, decoded)]
            assert seen[0] == seen[1]
        assert not decoded.connection.context.heads.by_block


def test_nothing_that_needs_a_table_is_cached() -> None:
    with Http2Peer(confirm=False) as peer:
        block = header_block([*FIELDS[:2], (b"content-type", b"application/grpc")])
        indexed = b"\x40\x05:path\x0a/test/Echo"  # in the table from now on
        assert peer.send(headers(indexed + block), message(1)) == OK
        assert peer.send(headers(b"\xbe" + block, stream=3), message(3)) == OK
        assert not peer.connection.context.heads.by_block
        assert peer.send(headers(b"\x20" + BLOCK, stream=5), message(5)) == OK  # it has no table from now on
        assert peer.send(headers(BLOCK, stream=7), message(7)) == OK
        assert list(peer.connection.context.heads.by_block) == [BLOCK]
        assert peer.send(headers(b"\xbe" + block, stream=9)) == ["GOAWAY COMPRESSION_ERROR"]


# Hostile peers.


@pytest.mark.parametrize(
    "flood",
    [
        frame(PING, 0, 0, b"12345678"),
        frame(PING, 1, 0, b"12345678"),
        setting(3, 5),
        frame(SETTINGS, 1, 0),
        frame(PRIORITY, 0, 3, b"\0\0\0\x05\0"),
        window(0, 1),
        frame(99, 0, 0),
        frame(DATA, 0, 1),
    ],
    ids=["ping", "ping-ack", "settings", "settings-ack", "priority", "window", "unknown", "empty-data"],
)
def test_a_flood_of_frames_ends(flood: bytes) -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Echo"))
        seen = peer.send(flood * (frame_budget.BURST + 10))
        assert seen[-1] == "GOAWAY ENHANCE_YOUR_CALM"
    with Http2Peer() as peer:  # and slowly it does not
        peer.send(head(1, "/test/Chat"))
        for _ in range(5):
            assert "GOAWAY" not in str(peer.send(flood * (frame_budget.PER_SECOND // 2)))
            peer.loop.now += 1
        assert peer.send(head(3) + message(3)) == OK


def test_data_of_a_stream_that_was_reset_is_bounded() -> None:
    with Http2Peer() as peer:
        late = frame(DATA, 0, 1, b"x")
        assert peer.send(ECHO, late) == [*OK, "RST_STREAM STREAM_CLOSED"]
        assert peer.send(late * 1000) == []
        assert peer.send(late * frame_budget.BURST) == ["GOAWAY ENHANCE_YOUR_CALM"]


def test_a_frame_of_many_settings_is_as_many_frames() -> None:
    """Each may change the windows of all streams: 2,730 fit into a frame."""
    with Http2Peer() as peer:
        peer.send(*(head(number, "/test/Chat") for number in range(1, 100, 2)))
        many = frame(SETTINGS, 0, 0, b"\0\4\0\0\xff\xff" * 2500)
        assert peer.send(many) == ["GOAWAY ENHANCE_YOUR_CALM"]


def test_streams_without_a_window_are_not_tried_again_and_again() -> None:
    with Http2Peer() as peer:
        peer.send(setting(4, 0), *(head(number, "/test/Echo") + message(number) for number in range(1, 200, 2)))
        tried: list[int] = []
        send = peer.connection.send

        def note_and_send(stream: Http2Stream) -> None:
            tried.append(stream.id)
            send(stream)

        peer.connection.send = note_and_send  # type: ignore[method-assign]
        assert peer.send(window(0, 1) * 100, setting(3, 5) * 100) == []
        assert tried == []
        assert peer.send(window(7, 100)) == ["DATA 7", "HEADERS end grpc-status=0"]


def test_rapid_resets_end() -> None:
    with Http2Peer() as peer:
        numbers = iter(range(1, 10 * frame_budget.BURST, 2))
        for number in islice(numbers, frame_budget.BURST - 10):
            cancelled = [head(number, "/test/Wait"), message(number), frame(RST, 0, number, b"\0\0\0\x08")]
            assert peer.send(*cancelled) == []
        assert not peer.connection.streams
        peer.loop.turn()
        assert peer.methods.seen.count("cancelled") == frame_budget.BURST - 10, "the work has ended too"
        seen: list[str] = []
        for number in islice(numbers, 20):
            seen = peer.send(head(number), frame(RST, 0, number, b"\0\0\0\x08"))
            if seen:
                break
        assert seen == ["GOAWAY ENHANCE_YOUR_CALM"]


def test_who_lets_calls_end_may_cancel_as_many_as_it_likes() -> None:
    with Http2Peer() as peer:
        for number in range(1, 40_000, 4):
            peer.send(head(number) + message(number))
            assert peer.send(head(number + 2), frame(RST, 0, number + 2, b"\0\0\0\x08")) == []


def test_streams_are_bounded() -> None:
    with Http2Peer() as peer:
        numbers = range(1, 2 * bounds.MAX_STREAMS, 2)
        assert peer.send(*(head(number, "/test/Wait") + message(number) for number in numbers)) == []
        assert peer.send(head(2 * bounds.MAX_STREAMS + 1)) == ["RST_STREAM REFUSED_STREAM"]
        peer.methods.waiting[0].set_result(b"hi")
        assert peer.turn() == OK
        assert peer.send(head(2 * bounds.MAX_STREAMS + 3), message(2 * bounds.MAX_STREAMS + 3)) == OK


@pytest.mark.parametrize("size", [0, 1, 4000])
def test_continuations_are_bounded(size: int) -> None:
    with Http2Peer() as peer:
        seen = peer.send(frame(HEADERS, 0, 1, BLOCK), frame(CONTINUATION, 0, 1, b"\0" * size) * 20)
        assert seen == ["GOAWAY ENHANCE_YOUR_CALM"]


def large_head(stream: int, size: int, flags: int = 0) -> bytes:
    """A HEADERS frame with a field of so many bytes, and what continues it."""
    block = head(stream, x="y" * size)[9:]
    parts = [block[at : at + 16_384] for at in range(0, len(block), 16_384)]
    ends = [0] * (len(parts) - 1) + [END_HEADERS]
    begun = frame(HEADERS, flags | ends[0], stream, parts[0])
    pairs = zip(ends[1:], parts[1:], strict=True)
    return begun + b"".join(frame(CONTINUATION, end, stream, part) for end, part in pairs)


@pytest.mark.parametrize("size", [16_200, 40_000])
def test_a_call_with_too_much_metadata_is_refused_alone(size: int) -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Wait") + message(1))
        status, reset = peer.send(large_head(3, size), message(3))
        assert status.startswith("HEADERS end 200 grpc-status=8 grpc-message=The metadata")
        assert reset == "RST_STREAM NO_ERROR"
        peer.send(head(5, "/test/Chat"))
        assert peer.send(large_head(5, size, END_STREAM)) == ["RST_STREAM ENHANCE_YOUR_CALM"], "trailers"
        assert peer.send(headers(header_block([(b"x", b"y")] * 500), stream=7)) == [status, reset], "many fields"
        assert peer.send(head(9) + message(9)) == OK
        peer.methods.waiting[0].set_result(b"hi")
        assert peer.turn() == OK, "the others go on"
    with Http2Peer(confirm=False) as peer:  # with a table every block matters
        assert peer.send(large_head(3, size)) == ["GOAWAY ENHANCE_YOUR_CALM"]


def test_what_is_held_of_requests_is_bounded() -> None:
    with Http2Peer() as peer:
        part = b"\0\0\1\0\0" + b"x" * 16_000  # of a message of 64 KiB
        seen: list[str] = []
        for number in range(1, 401, 2):
            seen += peer.send(head(number), frame(DATA, 0, number, part))
        assert "grpc-status=8" in str(seen)
        assert peer.connection.held_bytes <= bounds.MIN_HELD_BYTES
        assert "GOAWAY" not in str(seen)
        assert peer.send(head(999) + message(999)) == OK
        for number in range(1, 401, 2):
            peer.send(frame(RST, 0, number, b"\0\0\0\x08"))
        assert peer.connection.held_bytes == 0


# Time.


@pytest.mark.parametrize(
    "sent", [b"", PREFACE[:5], PREFACE, PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 0, 1, BLOCK)]
)
def test_frames_that_are_expected_come_in_time(sent: bytes) -> None:
    with Http2Peer(hello=False) as peer:
        peer.send(sent)
        assert peer.wait(bounds.HELLO_TIMEOUT_S - 1) == []
        assert peer.wait(2) == ["GOAWAY PROTOCOL_ERROR"]


def test_a_request_comes_in_time() -> None:
    with Http2Peer() as peer:
        peer.send(head(1), frame(DATA, 0, 1, b"\0\0"))
        assert peer.wait(bounds.REQUEST_TIMEOUT_S) == []
        assert peer.wait(1)[0].startswith("HEADERS end 200 grpc-status=4")
        assert not peer.connection.streams


def test_a_silent_peer_is_pinged_and_closed() -> None:
    with Http2Peer() as peer:
        assert peer.wait(bounds.PING_AFTER_S) == []
        peer.connection.tick(bounds.PING_AFTER_S + 1)
        ping = peer.connection.take_output()
        assert peer.send(ping[:4] + b"\1" + ping[5:]) == []  # answered
        assert peer.wait(bounds.PING_AFTER_S) == []
        assert peer.wait(1) == ["PING"]
        assert peer.wait(bounds.PING_TIMEOUT_S + 1) == ["GOAWAY NO_ERROR"]
        assert peer.connection.closed


def test_a_response_that_is_not_taken_is_given_up() -> None:
    with Http2Peer() as peer:
        peer.send(setting(4, 0))
        assert peer.send(head(1, "/test/Large") + message(1)) == ["HEADERS 200"]
        for _ in range(6):
            peer.wait(4)
            peer.send(frame(PING, 0, 0, b"12345678"))
        assert peer.send(window(1, 1)) == ["DATA 1"]  # it gets on
        seen: list[str] = []
        for _ in range(8):
            assert not seen
            seen += [line for line in peer.wait(4) if "RST" in line]
            peer.send(frame(PING, 0, 0, b"12345678"))
        assert seen == ["RST_STREAM CANCEL"]
        assert not peer.connection.streams
        assert not peer.connection.sender.blocked


# The end.


def test_leaving_lets_calls_end_and_refuses_new_ones() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Wait") + message(1))
        peer.connection.leave(0)
        assert peer.read() == ["GOAWAY NO_ERROR", "PING"]
        assert peer.send(head(3) + message(3)) == OK  # it was sent before the peer knew
        assert peer.send(frame(PING, 1, 0, b"leaving!")) == ["GOAWAY NO_ERROR"]
        assert peer.send(head(5) + message(5)) == ["RST_STREAM REFUSED_STREAM"]
        assert not peer.connection.closed
        peer.methods.waiting[0].set_result(b"hi")
        assert peer.turn() == OK
        assert peer.connection.closed


def test_leaving_an_idle_connection_ends_it() -> None:
    with Http2Peer() as peer:
        peer.connection.leave(0)
        assert peer.wait(bounds.LEAVE_S + 1) == ["GOAWAY NO_ERROR", "PING", "GOAWAY NO_ERROR"]
        assert peer.connection.closed


def test_calls_that_do_not_end_are_cut_off() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Wait") + message(1), head(3, "/test/Chat"))
        peer.turn()
        peer.connection.cut_off()
        seen = peer.turn()
        assert sum("grpc-status=14 grpc-message=This service stops." in line for line in seen) == 2
        assert peer.connection.closed
        assert peer.methods.seen == ["cancelled", "left", "left"]


def test_a_peer_that_leaves_has_its_calls_answered() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Wait") + message(1), frame(GOAWAY, 0, 0, b"\0" * 8))
        peer.methods.waiting[0].set_result(b"hi")
        assert peer.turn() == OK
        assert peer.connection.closed
