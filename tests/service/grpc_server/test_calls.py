"""Calls: every one has one status, whatever is sent and whatever its handler does; cancelled ones end at once."""

import logging

import pytest

from tests.fuzz.http2_frame_builder import DATA, END_HEADERS, END_STREAM, HEADERS, RST, WINDOW, frame, header_block
from tests.service.grpc_server.http2_peer import MAX_MESSAGE, OK, Http2Peer, head, message, prefixed

CANCEL = b"\0\0\0\x08"


def only(lines: list[str]) -> str:
    (line,) = [line for line in lines if not line.startswith(("RST_STREAM NO_ERROR", "WINDOW"))]
    return line


# Unary calls.


def test_metadata_comes_with_the_status() -> None:
    with Http2Peer() as peer:
        assert peer.send(head(1, "/test/Noted") + message(1))[-1] == "HEADERS end grpc-status=0 note=well"


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [("/test/Fail", 5, "grpc-message=100 %25 nothing, %C3%A4h"), ("/test/Wrong", 13, "defect of the service")],
)
def test_a_handler_that_fails(path: str, code: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    with Http2Peer() as peer:
        line = only(peer.send(head(1, path) + message(1)))
        assert line.startswith(f"HEADERS end 200 grpc-status={code} ")
        assert words in line
        assert ("ZeroDivisionError" in caplog.text) == (code == 13)
        assert not peer.connection.streams


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frame(DATA, END_STREAM, 1), 12),  # no message
        (frame(HEADERS, END_HEADERS | END_STREAM, 1, header_block([(b"x", b"y")])), 12),
        (frame(DATA, END_STREAM, 1, prefixed(b"one") + prefixed(b"two")), 12),
        (frame(DATA, END_STREAM, 1, prefixed(b"one") + b"\0"), 12),
        (frame(DATA, END_STREAM, 1, b"\0\0"), 13),  # it ends too early
        (frame(DATA, END_STREAM, 1, prefixed(b"one")[:-1]), 13),
        (frame(DATA, END_STREAM, 1, b"\1\0\0\0\1x"), 13),  # compressed
        (frame(DATA, 0, 1, b"\xff\0\0\0\1"), 13),
        (frame(DATA, 0, 1, b"\0\xff\xff\xff\xff"), 8),  # too long
        (frame(DATA, END_STREAM, 1, b"\0" + (MAX_MESSAGE + 1).to_bytes(4, "big")), 8),
    ],
    ids=range(10),
)
def test_what_is_not_one_message(sent: bytes, code: int) -> None:
    with Http2Peer() as peer:
        assert only(peer.send(head(1) + sent)).startswith(f"HEADERS end 200 grpc-status={code} ")
        assert not peer.connection.streams
        assert peer.connection.held_bytes == 0
        assert peer.send(head(3) + message(3)) == OK


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (head(1, grpc_encoding="gzip"), "grpc-status=12"),
        (head(1, grpc_encoding="gzip"), "grpc-accept-encoding=identity"),
        (head(1, grpc_timeout="soon"), "grpc-status=13"),
        (head(1, grpc_timeout="123456789S"), "grpc-status=13"),
        (head(1, "/test/echo"), "grpc-status=12"),
        (head(1, "/x\xff"), "grpc-status=12"),
        (head(1, content_type="application/grpc-web") + frame(DATA, END_STREAM, 1), "HEADERS 415"),
        (head(1, content_type="application/json") + message(1), "HEADERS 415"),
        (frame(HEADERS, 5, 1, header_block([(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"),
                                            (b"content-type", b"application/grpc")])), "HEADERS 405"),
    ],
    ids=range(9),
)  # fmt: skip
def test_heads_that_are_refused(sent: bytes, status: str) -> None:
    with Http2Peer() as peer:
        assert status in peer.send(sent)[0]
        assert not peer.connection.streams


@pytest.mark.parametrize("kind", ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"])
def test_content_types_of_grpc(kind: str) -> None:
    with Http2Peer() as peer:
        assert peer.send(head(1, content_type=kind, grpc_encoding="identity") + message(1)) == OK


def test_a_call_that_waits() -> None:
    with Http2Peer() as peer:
        assert peer.send(head(1, "/test/Wait") + message(1)) == []
        assert not peer.connection.is_idle
        peer.methods.waiting[0].set_result(b"hi")
        assert peer.turn() == OK
        assert peer.methods.seen == ["left"]
        assert peer.connection.is_idle


@pytest.mark.parametrize("how", ["reset", "lost", "goaway"])
def test_a_call_whose_client_has_gone_is_cancelled(how: str) -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Wait") + message(1))
        if how == "reset":
            peer.send(frame(RST, 0, 1, CANCEL))
        elif how == "lost":
            peer.connection.lost()
        else:
            peer.send(frame(DATA, 0, 0))
        assert peer.turn() == []
        assert peer.methods.seen == ["cancelled", "left"]
        assert not peer.connection.streams


def test_a_call_that_is_decided_as_its_client_leaves_is_cancelled() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Wait") + message(1))
        peer.methods.waiting[0].set_result(b"hi")
        peer.connection.lost()
        assert peer.turn() == []
        assert peer.methods.seen == ["cancelled", "left"]


def test_a_deadline_ends_a_call() -> None:
    with Http2Peer() as peer:
        for number, timeout in ((1, "1500m"), (3, "99999999H"), (5, "1u")):
            peer.send(head(number, "/test/Wait", grpc_timeout=timeout) + message(number))
        assert peer.send(head(7, grpc_timeout="0n") + message(7)) == OK  # it need not wait
        assert only(peer.wait(1)).startswith("HEADERS end 200 grpc-status=4")
        assert only(peer.wait(1)).startswith("HEADERS end 200 grpc-status=4")
        assert peer.methods.seen == ["cancelled", "left"] * 2
        peer.methods.waiting[1].set_result(b"hi")
        assert peer.turn() == OK


def test_timeouts_of_asyncio_work_in_a_handler() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Wait") + message(1))
        peer.loop.now = 101
        assert peer.turn() == [
            "HEADERS end 200 grpc-status=13 grpc-message=This is a defect of the service. Its log says more."
        ]  # TimeoutError, which the handler does not catch


def test_what_a_handler_awaits_may_be_cancelled_by_others() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Wait") + message(1))
        peer.methods.waiting[0].cancel()
        assert only(peer.turn()).startswith("HEADERS end 200 grpc-status=1 ")


def test_a_handler_may_give_way() -> None:
    with Http2Peer() as peer:
        assert peer.send(head(1, "/test/Yields") + message(1)) == []
        assert peer.turn() == OK


def test_a_method_may_answer_at_once() -> None:
    with Http2Peer() as peer:
        assert peer.send(head(1, "/test/Quick") + message(1, b"h")) == OK
        assert peer.send(head(3, "/test/Quick") + message(3, b"wait")) == ["HEADERS 200", "DATA 9", OK[2]]
        assert only(peer.send(head(5, "/test/Quick") + message(5, b"fail"))).startswith(
            "HEADERS end 200 grpc-status=5 grpc-message=not at once"
        )
        assert "grpc-status=13" in only(peer.send(head(7, "/test/Quick") + message(7, b"wrong")))
        assert not peer.connection.streams


def test_an_answer_at_once_waits_for_its_window() -> None:
    with Http2Peer() as peer:
        lines = peer.send(head(1, "/test/Quick") + message(1, b"large"))
        assert lines[0] == "HEADERS 200"
        assert sum(int(line.split()[1]) for line in lines if line.startswith("DATA")) == 65_535
        assert peer.connection.streams
        more = (100_000).to_bytes(4, "big")
        rest = peer.send(frame(WINDOW, 0, 0, more), frame(WINDOW, 0, 1, more))
        assert rest[-1] == OK[2]
        assert not peer.connection.streams


# Streaming calls.


def test_messages_come_and_go_in_order() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Chat", add="!"))
        assert peer.send(message(1, b"one", end=False)) + peer.turn() == ["HEADERS 200", "DATA 9"]
        both = prefixed(b"two") + prefixed(b"three")
        assert peer.send(frame(DATA, 0, 1, both[:10])) + peer.turn() == ["DATA 9"]
        assert peer.send(frame(DATA, END_STREAM, 1, both[10:])) + peer.turn() == [
            "DATA 11",
            "HEADERS end grpc-status=0",
        ]
        assert peer.methods.seen == ["one", "two", "three", "left"]
        assert peer.connection.held_bytes == 0
        assert not peer.connection.streams


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (message(1, b"fail"), 10),
        (frame(DATA, 0, 1, b"\0\xff\xff\xff\xff"), 8),
        (frame(DATA, 0, 1, b"\1\0\0\0\0"), 13),
        (frame(DATA, END_STREAM, 1, b"\0\0\0\0\1"), 13),
    ],
    ids=range(4),
)
def test_a_stream_that_fails(sent: bytes, code: int) -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Chat"))
        peer.turn()
        assert only(peer.send(sent) + peer.turn()).startswith(f"HEADERS end 200 grpc-status={code} ")
        assert peer.methods.seen == ["left"]
        assert peer.connection.held_bytes == 0


@pytest.mark.parametrize("how", ["reset", "lost"])
def test_a_stream_whose_client_has_gone_is_closed(how: str) -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Chat"), message(1, end=False))
        peer.turn()
        assert not peer.connection.is_idle, "a stream may be silent"
        if how == "reset":
            peer.send(frame(RST, 0, 1, CANCEL))
        else:
            peer.connection.lost()
        peer.turn()
        assert peer.methods.seen == ["hi", "left"]


def test_a_stream_has_a_deadline_and_otherwise_lasts() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Chat"), head(3, "/test/Chat", grpc_timeout="30S"))
        for _ in range(9):
            peer.wait(3)
            peer.send(frame(6, 0, 0, b"12345678"))
        assert only(peer.wait(4)).startswith("HEADERS end 200 grpc-status=4")
        assert list(peer.connection.streams) == [1]


def test_a_message_in_a_stream_comes_in_time() -> None:
    with Http2Peer() as peer:
        whole = prefixed(b"one")
        peer.send(head(1, "/test/Chat"), frame(DATA, 0, 1, whole[:6]))
        peer.send(head(3, "/test/Chat"), frame(DATA, 0, 3, whole[:6]))
        seen: list[str] = []
        for _ in range(5):
            seen += peer.wait(5)
            peer.send(frame(DATA, 0, 3, whole[6:] + whole[:6]))  # always within a message, and never in the same
        assert sum("grpc-status=4" in line for line in seen) == 1
        assert list(peer.connection.streams) == [3]
        peer.send(frame(RST, 0, 3, b"\0\0\0\x08"))
        assert peer.connection.held_bytes == 0


def test_who_sends_faster_than_it_is_taken_is_slowed_down() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Chat"), message(1, b"slow", end=False))
        peer.turn()
        part, seen = message(1, b"x" * 15_000, end=False), []
        for _ in range(4):
            seen += peer.send(part)
        assert not [line for line in seen if line.startswith("WINDOW")]
        peer.methods.waiting[0].set_result(b"")
        assert f"WINDOW_UPDATE {9 + 4 * 15_005}" in peer.turn()


def test_who_does_not_take_what_comes_holds_its_handler_back() -> None:
    with Http2Peer() as peer:
        peer.send(head(1, "/test/Chat"), message(1, b"large", end=False) * 5)
        seen = peer.turn()
        assert sum(int(line.split()[1]) for line in seen if line.startswith("DATA")) == 65_535
        assert len(peer.methods.seen) == 1
        more = (10**6).to_bytes(4, "big")
        peer.send(frame(8, 0, 0, more), frame(8, 0, 1, more))
        peer.turn()
        assert len(peer.methods.seen) == 5


def test_no_call_is_logged_for_what_a_client_sends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "headgate"), Http2Peer() as peer:
        for number, path in enumerate(("/test/Fail", "/test/Wait", "/test/Chat", "/x")):
            peer.send(
                head(2 * number + 1, path) + message(2 * number + 1, end=False),
                frame(RST, 0, 2 * number + 1, CANCEL),
            )
        peer.turn()
    assert not [record for record in caplog.records if record.name.startswith("headgate")]
