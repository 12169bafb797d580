"""Server errors: whether to retry, and the sentence for users, are the same as in Python."""

import pytest

from headgate.engines.redis.errors import (
    ClusterBusy,
    NoScript,
    ReadOnlyReplica,
    Redirected,
    WrongType,
    engine_failure,
    parse_error_reply,
)
from tests.nginx.engines.redis.redis_harness import RedisDriverNginx

RETRY = {
    NoScript: "no_script",
    Redirected: "redirected",
    ClusterBusy: "busy",
    ReadOnlyReplica: "read_only_replica",
}
ERROR_REPLIES = [
    *("NOSCRIPT No matching script. Please use EVAL.", "READONLY You can't write against a read only replica."),
    *(
        "MOVED 3999 10.0.0.1:6381",
        "ASK 3999 ::1:6381",
        "MOVED 3999 :6381",
        "MOVED 3999 ?:6381",
        "MOVED x",
        "ASK 1 h",
    ),
    *(
        "TRYAGAIN Multiple keys request",
        "CLUSTERDOWN The cluster is down",
        "LOADING Redis is loading",
        "MASTERDOWN x",
    ),
    "ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a replica.",
    *("CROSSSLOT Keys in request don't hash to the same slot", "ERR This instance has cluster support disabled"),
    *("ERR unknown command 'FOO'", "ERR", "", "WRONGTYPE Operation against a key holding the wrong kind of value"),
    "WRONGTYPE headgate: the key hg2:tb:a:{b} holds a value that headgate did not write. Nothing was changed.",
    *("WRONGPASS invalid username-password pair or user is disabled.", "NOAUTH Authentication required."),
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "NOPERM User ada has no permissions to run the 'evalsha' command",
    "NOPERM No permissions to access a key",
    "NOPERM this user has no permissions to access one of the keys used as arguments",
    "ERR The user executing the script can't run this command or subcommand script: f_1, on @user_script:5.",
    "ERR The user executing the script can't access at least one of the keys mentioned in the command arguments",
    "ACL failure in script: User ada has no permissions to run the 'set' command script: f_1, on @user_script:17.",
]


@pytest.mark.parametrize("text", ERROR_REPLIES)
def test_error_replies_are_classified_as_in_python(gate: RedisDriverNginx, text: str) -> None:
    there, here = parse_error_reply(text), gate.call_driver("parse_error", text=text)
    assert here["kind"] == ("corrupt" if isinstance(there, WrongType) else "refused")
    assert here.get("retry") == RETRY.get(type(there))
    if isinstance(there, Redirected):
        parsed = (here["is_temporary"], here["slot"], here["host"], here["port"])
        assert parsed == (there.is_temporary, there.slot, there.host, there.port)


@pytest.mark.parametrize("instead", [None, "redis://h:1", "redis+cluster://h:1"])
@pytest.mark.parametrize("text", ERROR_REPLIES)
def test_error_messages_are_those_of_python(gate: RedisDriverNginx, text: str, instead: str | None) -> None:
    assert gate.call_driver("explain_error", text=text, instead=instead)["text"] == str(
        engine_failure("h:1", "hg", parse_error_reply(text), instead)
    )
