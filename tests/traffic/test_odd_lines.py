"""Lines that are nearly in a usual format are read as their writer meant them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headgate.errors import InvalidLog
from headgate.traffic.reader import LogReader, ReadOptions
from headgate.traffic.recorded_call import RecordedCall

TIME = "[10/Dec/2024:00:00:02 +0700]"
AT_US = 1_733_763_602_000_000
LINE = f'192.0.2.7 - - {TIME} "GET /a HTTP/1.1" 200 512 "-" "curl"'


def read_call(path: Path, text: str | bytes, **options: Any) -> RecordedCall:
    """Reads a log of one call."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reader = LogReader([str(path)], ReadOptions(**options))
    [call] = reader.calls()
    assert reader.summaries[0].unreadable == 0
    return call


@pytest.mark.parametrize(
    "prefix",
    [
        "\ufeff",
        "Dec 10 00:00:02 web nginx: ",
        "<190>Dec  9 00:00:02 web nginx: ",
        "2024-12-10T00:00:02+07:00 web nginx[7]: ",
        "2024-12-10T00:00:02.123456789Z stdout F ",
        "web-1  | ",
    ],
    ids=[
        "byte order mark",
        "syslog",
        "syslog with priority",
        "syslog with a year",
        "Kubernetes",
        "Docker Compose",
    ],
)
@pytest.mark.parametrize("line", [LINE, LINE.removesuffix(' "-" "curl"')], ids=["combined", "common"])
def test_behind_a_prefix(tmp_path: Path, prefix: str, line: str) -> None:
    call = read_call(tmp_path / "log", f"{prefix}{line}\r\n")
    assert (call.time_us, call.attributes["address"], call.attributes["path"]) == (AT_US, "192.0.2.7", "/a")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f'192.0.2.7 - John Q. Doe {TIME} "GET /a HTTP/1.1" 200 1 "-" "-"', {"user": "John Q. Doe", "path": "/a"}),
        (f'192.0.2.7 - - {TIME} "GET /a"b HTTP/1.1" 200 1 "-" "UA "q" x"', {"path": '/a"b'}),
        (f'192.0.2.7 - - {TIME} "GET /a\\"b HTTP/1.1" 200 1 "-" "UA \\"q"', {"path": '/a\\"b'}),
        (f'{LINE} "10.0.0.1, 10.0.0.2" 0.123', {"path": "/a", "header.user-agent": "curl"}),
        (f'[2001:DB8::7]:443 - - {TIME} "GET /a HTTP/1.1" 200 - "-" "-"', {"address": "2001:db8::7"}),
    ],
    ids=["user with blanks", "quotes in quotes", "escaped quotes", "more fields", "port and no size"],
)
def test_combined(tmp_path: Path, line: str, expected: dict[str, str]) -> None:
    call = read_call(tmp_path / "log", f"{line}\n")
    assert expected.items() <= call.attributes.items()


NGINX = '$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer"'


@pytest.mark.parametrize(
    ("log_format", "line", "expected"),
    [
        (
            f"log_format main escape=default '{NGINX[:50]}'\n    '{NGINX[50:]}';",
            LINE,
            {"address": "192.0.2.7", "path": "/a"},
        ),
        (NGINX.replace(" ", "  \n "), LINE, {"path": "/a"}),
        (
            r"$remote_addr\t$time_iso8601\t$request\t$http_user_agent",
            "192.0.2.7\t2024-12-10T00:00:02+07:00\tGET /a HTTP/1.1\tMozilla/5.0 (X11)",
            {"path": "/a", "header.user-agent": "Mozilla/5.0 (X11)"},
        ),
        (
            "$remote_addr:$remote_port $time_local $status",
            "2001:db8::7:5678 10/Dec/2024:00:00:02 +0700 200",
            {"address": "2001:db8::7", "remote_port": "5678"},
        ),
        (
            "$remote_addr [$time_local] $upstream_addr $upstream_response_time $status",
            f"192.0.2.7 {TIME} 10.0.0.1:80, 10.0.0.2:80 : 10.0.0.3:80 0.1, 0.2 : - 200",
            {"upstream_addr": "10.0.0.1:80, 10.0.0.2:80 : 10.0.0.3:80", "status": "200"},
        ),
        (
            '{"at":"$time_iso8601","ip":"$remote_addr","line":"$request"}',
            '{"at":"2024-12-10T00:00:02+07:00","ip":"192.0.2.7","line":"GET /a?b=\\"c\\" HTTP/1.1"}',
            {"address": "192.0.2.7", "path": "/a"},
        ),
        (
            "$msec $http_x_forwarded_for $http_user_agent",
            "1733763602.000 10.0.0.1, 192.0.2.7 Mozilla/5.0 (X11)",
            {"address": "192.0.2.7", "header.user-agent": "Mozilla/5.0 (X11)"},
        ),
        (
            r'LogFormat "%h %l %u %t \"%r\" %>s %O \"%{User-Agent}i\" 100%%" combinedio',
            f'192.0.2.7 - - {TIME} "GET /a HTTP/1.1" 200 512 "curl" 100%',
            {"path": "/a", "header.user-agent": "curl"},
        ),
        ("%h %{%Y-%m-%d %H:%M:%S %z}t %>s", "192.0.2.7 2024-12-10 00:00:02 +0700 200", {"status": "200"}),
    ],
)
def test_format_strings(tmp_path: Path, log_format: str, line: str, expected: dict[str, str]) -> None:
    call = read_call(tmp_path / "log", f"{line}\n", format=log_format)
    assert call.time_us == AT_US
    assert expected.items() <= call.attributes.items()


def test_istio_without_forwarded_addresses(tmp_path: Path) -> None:
    line = (
        '[2024-12-09T17:00:02.000Z] "GET /a HTTP/1.1" 418 - via_upstream - "-" 0 135 4 4 "-" "curl" "id" '
        '"web:8000" "127.0.0.1:80" inbound|8000|| 127.0.0.1:41854 10.44.1.27:80 192.0.2.7:37652 - default\n'
    )
    call = read_call(tmp_path / "log", line)
    assert (call.time_us, call.attributes["address"], call.duration_us) == (AT_US, "192.0.2.7", 4_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("date,time,ip\n2024-12-09,17:00:02,192.0.2.7\n", {"address": "192.0.2.7"}),
        ("date;time;ip\n2024-12-09 17:00;1733763602;192.0.2.7\n", {"address": "192.0.2.7"}),
        ("time\n1733763602\n", {}),
        ('{"@timestamp": 1733763602000, "clientIp": "192.0.2.7", "tenantId": 7}\n', {"tenant_id": "7"}),
    ],
    ids=["a column for the date", "a date beside an epoch", "one column", "words without a mark between them"],
)
def test_columns(tmp_path: Path, text: str, expected: dict[str, str]) -> None:
    call = read_call(tmp_path / "log", text)
    assert call.time_us == AT_US
    assert expected.items() <= call.attributes.items()


def test_a_pattern_whose_time_has_another_name(tmp_path: Path) -> None:
    line = "at 1733763602: 192.0.2.7\n"
    for pattern, fields in (
        (r"at (?P<ts>\d+): (?P<ip>\S+)", {}),
        (r"at (?P<epoch_s>\d+): (?P<ip>\S+)", {"time": "epoch_s"}),
    ):
        assert read_call(tmp_path / "log", line, pattern=pattern, fields=fields).time_us == AT_US


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        (LINE.encode("utf-16"), {}, "is UTF-16: convert it first"),
        ('[\n{"time": 1}\n]\n', {}, "is a JSON array: write one object on each line"),
        ('[{"time": 1}]\n', {}, "is a JSON array"),
        ('{"a":' * 3000 + "1" + "}" * 3000, {}, "no time was found"),
        (
            "no time: 192.0.2.7\n",
            {"pattern": r": (?P<ip>\S+)"},
            "Line 1: it does not begin with a time, and the pattern",
        ),
        ("\x1b[2J,time\n\x1b[31m,soon\n", {}, r"It is: \\x1b\[31m,soon"),
    ],
)
def test_unreadable_lines_are_refused(
    tmp_path: Path, text: str | bytes, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InvalidLog, match=sentence):
        read_call(tmp_path / "log", text, **options)
