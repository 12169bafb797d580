"""Logs in the usual formats are read without options."""

from __future__ import annotations

import gzip
import json
import os
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import InvalidLog
from headgate.traffic.reader import LogReader, ReadOptions
from headgate.traffic.recorded_call import RecordedCall


def read(path: Path, text: str | bytes, **options: Any) -> tuple[LogReader, list[RecordedCall]]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reader = LogReader([str(path)], ReadOptions(**options))
    return reader, list(reader.calls())


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


COMBINED = (
    '192.0.2.7 - ann [10/Oct/2025:13:55:36 -0700] "GET /a/%7Ejo?q=1 HTTP/1" 404 2 "http://x/" "curl/8 \\"x\\""'
)


def test_combined(tmp_path: Path) -> None:
    reader, [call] = read(tmp_path / "access.log", COMBINED + "\n")
    assert reader.summaries[0].line() == "combined log, 1 line, 0 s, 0 unreadable"
    assert call.time_us == at("2025-10-10T20:55:36+00:00")
    assert call.status == 404
    assert call.attributes == {
        "address": "192.0.2.7",
        "user": "ann",
        "method": "GET",
        "path": "/a/~jo",
        "argument.q": "1",
        "status": "404",
        "header.referer": "http://x/",
        "header.user-agent": 'curl/8 \\"x\\"',
    }


def test_only_needed_attributes_are_read(tmp_path: Path) -> None:
    _, calls = read(tmp_path / "access.log", f"{COMBINED}\n{COMBINED}\n", needed={"address"})
    assert [call.attributes for call in calls] == [{"address": "192.0.2.7"}] * 2
    assert calls[0].attributes is calls[1].attributes


def test_a_status_belongs_to_its_call(tmp_path: Path) -> None:
    text = f"{COMBINED}\n{COMBINED.replace(' 404 ', ' 200 ')}\n"
    _, calls = read(tmp_path / "access.log", text, needed={"address", "status"})
    assert [call.attributes["status"] for call in calls] == ["404", "200"]


@pytest.mark.parametrize(
    "request_line", ["-", "", "\\x16\\x03\\x01", "GET", "GET /a", "GET /a b HTTP/1.1", "get /a HTTP/1.1"]
)
def test_requests_that_are_none_have_no_path(tmp_path: Path, request_line: str) -> None:
    line = f'192.0.2.7 - - [10/Oct/2025:13:55:36 +0000] "{request_line}" 400 0 "-" "-"\n'
    _, [call] = read(tmp_path / "access.log", line)
    assert call.attributes.get("path") == {"GET /a": "/a", "GET /a b HTTP/1.1": "/a b"}.get(
        request_line, "/a" if request_line.startswith("get") else None
    )


def test_fields_of_json_may_be_null(tmp_path: Path) -> None:
    text = '{"time": 1760104536, "request": null, "status": null, "user": null, "ip": "192.0.2.7"}\n'
    _, [call] = read(tmp_path / "log", text)
    assert call == (1_760_104_536_000_000, {"address": "192.0.2.7"}, None, None, None, 1, None)


@pytest.mark.parametrize(
    ("line", "title", "attributes"),
    [
        (
            '192.0.2.7 - - [10/Oct/2025:13:55:36 +0000] "POST /login HTTP/1.0" 200 -',
            "common log",
            {"address": "192.0.2.7", "method": "POST", "path": "/login"},
        ),
        (
            '"192.0.2.7 - - [10/Oct/2025:13:55:36 +0000] "GET / HTTP/1.0" 200 5 "-" "w3af""',
            "combined log",
            {"address": "192.0.2.7", "path": "/", "header.user-agent": "w3af"},
        ),
        (
            '2001:db8:0::1 - - [10/Oct/2025:13:55:36 +0000] "GET / HTTP/1.0" 200 5 "-" "-"',
            "combined log",
            {"address": "2001:db8::1"},
        ),
        (
            'shop.example:443 192.0.2.7 - - [10/Oct/2025:13:55:36 +0000] "GET / HTTP/1.0" 200 5 "-" "-"',
            "combined log with virtual hosts",
            {"address": "192.0.2.7", "host": "shop.example"},
        ),
        (
            '[2025-10-10T13:55:36.000Z] "GET /api?x=1 HTTP/2" 204 - 154 0 226 100 "10.0.0.1, 192.0.2.7" "curl" '
            '"cc21d9b0" "shop.example" "10.0.2.1:80"',
            "Envoy log",
            {"address": "192.0.2.7", "path": "/api", "host": "shop.example", "header.user-agent": "curl"},
        ),
        (
            '[2025-10-10T13:55:36.000Z] "GET / HTTP/2" 200 - via - "-" 0 22 5 4 "-" "curl" "i" "shop:8" ""',
            "Envoy log",
            {"path": "/", "host": "shop"},
        ),
        (
            json.dumps({"start_time": "2025-10-10T13:55:36Z", "response_code": 200, "path": "/a", "duration": 12}),
            "Envoy JSON log",
            {"path": "/a"},
        ),
        (
            json.dumps({"ts": 1760104536.0, "request": {"remote_ip": "192.0.2.7", "uri": "/a", "method": "GET"}}),
            "JSON lines",
            {"address": "192.0.2.7", "path": "/a", "method": "GET"},
        ),
    ],
)
def test_detected(tmp_path: Path, line: str, title: str, attributes: dict[str, str]) -> None:
    reader, [call] = read(tmp_path / "log", line + "\n")
    assert reader.summaries[0].title == title
    assert call.time_us == at("2025-10-10T13:55:36+00:00")
    assert attributes.items() <= call.attributes.items()


def test_the_duration_of_envoy_is_in_milliseconds(tmp_path: Path) -> None:
    text = json.dumps({"start_time": "2025-10-10T13:55:36Z", "response_code": 200, "duration": 12})
    assert read(tmp_path / "log", text)[1][0].duration_us == 12_000


def test_a_log_format_of_nginx(tmp_path: Path) -> None:
    text = '192.0.2.7|ann [10/Oct/2025:13:55:36 +0000] "GET /a HTTP/1.1" 200 rt=2.5 plan="gold one"\n'
    log_format = '$remote_addr|$remote_user [$time_local] "$request" $status rt=$request_time plan="$http_x_plan"'
    reader, [call] = read(tmp_path / "log", text, format=log_format)
    assert reader.summaries[0].title == "nginx log"
    assert call.attributes["header.x-plan"] == "gold one"
    assert call.duration_us == 2_500_000
    assert call.time_us == at("2025-10-10T13:55:33.5+00:00")  # nginx writes a line when the call ends


def test_a_log_format_of_apache(tmp_path: Path) -> None:
    text = 'host7.example ann [10/Oct/2025:13:55:36 +0000] "GET /a HTTP/1.1" 200 512 2500 "gold"\n'
    reader, [call] = read(tmp_path / "log", text, format='%h %u %t "%r" %>s %b %D "%{X-Plan}i"')
    assert reader.summaries[0].title == "Apache log"
    assert (call.attributes["address"], call.attributes["header.x-plan"]) == ("host7.example", "gold")
    assert (call.status, call.duration_us) == (200, 2_500)


def test_tsv_with_a_header(tmp_path: Path) -> None:
    text = "host\ttime\turl\tresponse\nUnicomp6.example.net\t804571206\t/x/\t200\t\t\n"
    reader, [call] = read(tmp_path / "log", text)
    assert reader.summaries[0].line() == "TSV, 1 line, 0 s, 0 unreadable"
    assert call.attributes == {"address": "unicomp6.example.net", "path": "/x", "status": "200"}
    assert (call.line, call.status) == (2, 200)


def test_host_is_the_host_where_another_column_is_the_address(tmp_path: Path) -> None:
    _, [call] = read(tmp_path / "log", "time,remote_addr,host\n804571206,192.0.2.7,Shop.example\n")
    assert call.attributes == {"address": "192.0.2.7", "host": "shop.example"}


def test_csv_with_a_mapping(tmp_path: Path) -> None:
    text = 'when,src,n\n2025-10-10 13:55:36.1234567,"a, b",4\n'
    _, [call] = read(tmp_path / "log", text, fields={"time": "when", "user": "src", "cost": "n"})
    assert call.attributes["user"] == "a, b"
    assert (call.cost, call.time_us % 1_000_000) == (4, 123_456)


def test_a_column_is_the_cost_only_if_the_user_says_so(tmp_path: Path) -> None:
    text = "time,user,cost\n804571206,ann,4\n"
    assert read(tmp_path / "log", text)[1][0].cost is None
    assert read(tmp_path / "log", text, fields={"cost": "cost"})[1][0].cost == 4


def test_csv_without_a_header(tmp_path: Path) -> None:
    text = "192.0.2.7;1760104536123;/a\n192.0.2.8;1760104537123;/b\n"
    _, calls = read(tmp_path / "log", text, fields={"time": "2", "address": "1"})
    assert [call.attributes["address"] for call in calls] == ["192.0.2.7", "192.0.2.8"]
    assert calls[0].time_us == 1_760_104_536_123_000


SYSLOG = """\
Dec 31 23:59:58 web sshd[1]: Failed password for root from 192.0.2.7 port 22
Dec 31 23:59:59 web sshd[1]: Connection closed
Jan  1 00:00:01 web sshd[1]: Failed password for invalid user ann from 192.0.2.8 port 22
"""


def test_syslog_by_a_pattern(tmp_path: Path) -> None:
    pattern = r"Failed password for (?:invalid user )?(?P<user>\S+) from (?P<address>\S+)"
    reader, calls = read(tmp_path / "log", SYSLOG, pattern=pattern, year=2025)
    assert (
        reader.summaries[0].line()
        == "syslog lines by a pattern, 3 lines, 3 s, 1 without the pattern, 0 unreadable"
    )
    assert [call.attributes for call in calls] == [
        {"user": "root", "address": "192.0.2.7"},
        {"user": "ann", "address": "192.0.2.8"},
    ]
    assert [call.time_us for call in calls] == [at("2025-12-31T23:59:58+00:00"), at("2026-01-01T00:00:01+00:00")]


def test_the_year_is_the_last_that_fits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Dec 10 06:00:00 web: from 192.0.2.7\n")
    written = datetime(2026, 3, 1, tzinfo=UTC).timestamp()
    os.utime(log, (written, written))
    reader = LogReader([str(log)], ReadOptions(pattern=r"from (?P<address>\S+)"))
    [call] = reader.calls()
    assert call.time_us == at("2025-12-10T06:00:00+00:00")
    assert "the times have no year: the last is read as 2025" in reader.summaries[0].notes


def test_gzip_and_several_files_in_one_order(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gz", tmp_path / "b.csv"
    first.write_bytes(gzip.compress(b"time,ip\n100,192.0.2.1\n300,192.0.2.3\n"))
    second.write_text("time,ip\n200,192.0.2.2\n")
    reader = LogReader([str(second), str(first)])
    assert [call.attributes["address"] for call in reader.calls()] == ["192.0.2.1", "192.0.2.2", "192.0.2.3"]
    assert [summary.calls for summary in reader.summaries] == [1, 2]


def test_zstd(tmp_path: Path) -> None:
    zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    _, [call] = read(tmp_path / "log.zst", zstd.compress(b"time,ip\n100,192.0.2.1\n"))
    assert call.attributes == {"address": "192.0.2.1"}


def test_unreadable_lines_are_counted_and_shown(tmp_path: Path) -> None:
    text = f"{COMBINED}\nwhat\n\n{COMBINED}\n" + "bad \x07\n" * 6
    reader, calls = read(tmp_path / "log", text)
    [summary] = reader.summaries
    assert (len(calls), summary.unreadable, summary.lines) == (2, 7, 9)
    assert [number for number, _ in summary.shown] == [2, 5, 6, 7, 8]
    assert summary.line() == "combined log, 9 lines, 0 s, 7 unreadable"


def test_a_crash_that_left_zeros_makes_no_log_binary(tmp_path: Path) -> None:
    text = f"{COMBINED}\n" + "\0" * 2000 + f"\n{COMBINED}\n"
    reader, calls = read(tmp_path / "log", text)
    assert (len(calls), reader.summaries[0].unreadable) == (2, 1)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (b"\x7fELF\x00\x01", "is binary"),
        (bytes(range(256)) * 16, "is binary"),
        (f"{COMBINED}\n".encode("utf-16-le") * 9, "is binary"),
        (f"{COMBINED}\n".encode("utf-16"), "is UTF-16"),
        ("hello world\n", "no time was found"),
        ("a,b\n1,2\n", "columns: time, timestamp"),
        ('{"a": 1}\n', "JSON lines without a field that is a time. The fields are a; looked for: time, timestamp"),
        ("time,ip\nsoon,192.0.2.7\n", "read as CSV. Line 2: 'soon' is no time. It is: soon,192.0.2.7"),
        (b"\x1f\x8b\x08\x00rubbish", "cannot be decompressed"),
        (gzip.compress(b"time,ip\n100,192.0.2.1\n" * 20_000)[:-500], "cannot be read to its end"),
    ],
)
def test_nothing_to_read(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    with pytest.raises(InvalidLog, match=sentence.replace(",", "\\,")):
        read(tmp_path / "log", text)


def test_mistakes_of_the_user(tmp_path: Path) -> None:
    for options, sentence in (
        ({"format": "nonsense"}, '"nonsense" is not a format: write combined'),
        ({"pattern": "("}, "no regular expression"),
        ({"pattern": "x"}, "names no field"),
        ({"pattern": "(?P<x>never)"}, "found in none of 1 lines"),
        ({"zone": "Mars/Phobos"}, "is no time zone"),
        ({"fields": {"user": "account"}}, 'has no field "account"'),
    ):
        with pytest.raises(InvalidLog, match=sentence.replace("?", "\\?")):
            read(tmp_path / "log", COMBINED, **options)
    with pytest.raises(InvalidLog, match="cannot be read: No such file"):
        LogReader([str(tmp_path / "missing")])
