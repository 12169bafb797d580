"""RESP: what is packed is read back, and a truncated reply waits for the rest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.engines.redis import protocol
from tests.nginx.engines.redis.redis_harness import RedisDriverNginx

INTEGERS = st.integers(-(2**53), 2**53)
LINES = st.text(alphabet=st.characters(codec="ascii", exclude_characters="\r\n")).map(str.encode)
SIMPLE = st.one_of(
    INTEGERS,
    st.binary(max_size=40),
    st.none(),
    LINES.map(lambda line: ("+", line)),
    LINES.map(lambda line: ("-", line)),
)
REPLIES = st.recursive(SIMPLE, lambda inner: st.lists(inner, max_size=8), max_leaves=20)


def spoken(reply: Any) -> bytes:
    match reply:
        case None:
            return b"$-1\r\n"
        case int():
            return b":%d\r\n" % reply
        case bytes():
            return protocol.bulk(reply)
        case (kind, line):
            return kind.encode() + line + b"\r\n" if isinstance(kind, str) else _list(reply)
        case _:
            return _list(reply)


def _list(reply: list[Any]) -> bytes:
    return b"*%d\r\n" % len(reply) + b"".join(spoken(each) for each in reply)


def meant(reply: Any) -> Any:
    match reply:
        case None:
            return False
        case int():
            return reply
        case bytes():
            return {"text": reply.hex()}
        case tuple():
            kind, line = reply
            return {"text" if kind == "+" else "error": line.hex()}
    return [meant(each) for each in reply]


@given(st.binary(max_size=8), REPLIES, st.binary(max_size=8))
def test_a_resp_reply_is_decoded(gate: RedisDriverNginx, before: bytes, reply: Any, behind: bytes) -> None:
    text = before + spoken(reply) + behind
    answer = gate.call_driver("read", text=text.hex(), at=len(before) + 1)
    assert answer == {"value": meant(reply), "beyond": len(text) - len(behind) + 1}


@given(REPLIES, st.data())
def test_a_partial_reply_is_incomplete(gate: RedisDriverNginx, reply: Any, data: st.DataObject) -> None:
    text = spoken(reply)
    cut = data.draw(st.integers(0, len(text) - 1))
    missing = gate.call_driver("read", text=text[:cut].hex())["missing"]
    assert 1 <= missing <= len(text) - cut


@pytest.mark.parametrize(
    "text",
    [b"HTTP/1.1 400", b":\r\n", b":1x\r\n", b"*x\r\n", b"$3\r\nabcd\r\n", b":-\r\n", b":1\rx", b"*1\r\n!\r\n"],
)
def test_malformed_replies_are_refused(gate: RedisDriverNginx, text: bytes) -> None:
    assert gate.call_driver("read", text=text.hex()) == {"missing": False}


@given(st.lists(st.binary(max_size=30), min_size=1))
def test_commands_are_pythons(gate: RedisDriverNginx, words: list[bytes]) -> None:
    packed = gate.call_driver("pack", words=[word.hex() for word in words])
    assert bytes.fromhex(packed) == protocol.command(*words)


@given(st.lists(INTEGERS, min_size=1))
def test_numbers_are_written_out(gate: RedisDriverNginx, words: list[int]) -> None:
    assert bytes.fromhex(gate.call_driver("pack", words=words)) == protocol.command(*words)


@given(st.lists(st.text(max_size=20)), st.text())
def test_a_text_in_place_of_its_name(gate: RedisDriverNginx, words: list[str], text: str) -> None:
    packed = protocol.command("EVALSHA", "0" * 40, *words)
    answer = gate.call_driver("with_text", packed=packed.hex(), text=text.encode().hex())
    assert bytes.fromhex(answer) == protocol.command("EVAL", text, *words)
