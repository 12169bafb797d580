"""make demo-gateway: two real nginx, one Redis, one backend, and a flash sale of four seconds at them."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.nginx.demo import shop_servers
from tests.nginx.demo.expectations import LATE, failed_expectations
from tests.nginx.demo.flash_sale import GATES, GatewaySale, SaleCounts, SaleResult
from tests.nginx.demo.log_counts import BUYER_RULE, ITEM_RULE, LogCounts
from tests.repo_rules.repository import ROOT
from tests.servers import KINDS, Kind
from tests.servers.server_programs import command
from tests.servers.wait_until import until

pytestmark = [pytest.mark.servers, pytest.mark.slow]

SECONDS = 4.0


class PlayedSale:
    """A sale that was played, and what was left of it."""

    def __init__(self) -> None:
        self.shown: list[SaleCounts] = []
        with GatewaySale(SECONDS) as sale:
            self.ending = sale.play(self.shown.append)
            self.pids = sale.pids
            self.folders = [sale.backend.folder, *(gate.folder for gate in sale.gates)]
            self.logs = [gate.log for gate in sale.gates]


@pytest.fixture(scope="module")
def played() -> PlayedSale:
    return PlayedSale()


@pytest.fixture(scope="module")
def ending(played: PlayedSale) -> SaleResult:
    return played.ending


def test_all_bars_hold(ending: SaleResult) -> None:
    assert failed_expectations(ending) == []


def test_the_limit_of_an_item_is_one_for_both_nginx_and_is_used(ending: SaleResult) -> None:
    item = shop_servers.shop_limits()[ITEM_RULE]
    rush = SECONDS - ending.opened.seconds
    assert 2 < rush <= SECONDS * 0.8
    both = ending.counts.both
    assert both.requests["phone"] > 3 * item.over(SECONDS), "a flood"
    assert all(tally.sold["phone"] > 0 for tally in ending.counts.gates)
    assert both.sold["phone"] <= item.over(SECONDS + LATE)
    in_rush = ending.counts.arrived["phone"] - ending.opened.arrived["phone"]
    assert 0.9 * item.a_second * rush <= in_rush <= item.over(rush + LATE)


def test_items_below_their_limit_are_sold_on_every_request(ending: SaleResult) -> None:
    both = ending.counts.both
    for item in ("book", "lamp", "mug"):
        assert both.sold[item] == both.requests[item] > 0


def test_the_limit_of_a_buyer_holds_for_the_bot_at_each_nginx(ending: SaleResult) -> None:
    buyer = shop_servers.shop_limits()[BUYER_RULE]
    both = ending.counts.both
    assert both.bot_requests > 10 * GATES * buyer.over(SECONDS)
    assert all(0 < tally.bot_sold <= buyer.over(SECONDS + LATE) for tally in ending.counts.gates)


def test_the_backend_saw_exactly_what_passed(ending: SaleResult) -> None:
    assert ending.counts.arrived == ending.counts.both.sold


def test_buyers_and_logs_agree_and_nothing_is_an_error(played: PlayedSale) -> None:
    ending, both = played.ending, played.ending.counts.both
    refused_visits = 1
    assert sum(report.requests for report in ending.wrk_reports) == both.requests.total() - ending.visits
    assert sum(report.refused for report in ending.wrk_reports) == both.refused.total() - refused_visits
    assert set(both.refused) == {BUYER_RULE, ITEM_RULE}
    assert both.odd == []
    assert [log for log in played.logs if re.search(r"\[(error|crit|alert|emerg)\]", log)] == []


def test_a_refused_buyer_sees_a_friendly_page(ending: SaleResult) -> None:
    page = ending.page
    assert (page.status, page.headers["content-type"]) == (429, "text/html; charset=utf-8")
    assert b"<h1>So many of you!</h1>" in page.body
    assert int(page.headers["retry-after"]) >= 1


def test_the_flood_does_not_reach_redis(ending: SaleResult) -> None:
    both, beats = ending.counts.both, GATES * (SECONDS + 3)
    assert ending.counts.questions >= both.sold.total(), "whatever passes was passed by Redis"
    calm = both.sold.total() - both.sold["phone"]
    assert ending.counts.questions - calm - beats <= 3 * shop_servers.shop_limits()[ITEM_RULE].over(SECONDS)
    assert ending.counts.questions < both.requests.total() / 3


def test_shown_counts_never_decrease(played: PlayedSale) -> None:
    assert len(played.shown) == SECONDS
    for before, after in zip(played.shown, [*played.shown[1:], played.ending.counts], strict=True):
        assert before.both.requests <= after.both.requests
        assert before.both.sold <= after.both.sold
        assert before.questions <= after.questions
        assert before.arrived <= after.arrived


def test_nothing_is_left_running(played: PlayedSale) -> None:
    assert len(played.pids) == 1 + 2 * (1 + GATES) + GATES
    assert [pid for pid in played.pids if Path(f"/proc/{pid}").exists()] == []
    assert [folder for folder in played.folders if folder.exists()] == []


def session(leader: int) -> list[int]:
    """The processes of a session."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(words[3]) == leader and words[0] != "Z":
            pids.append(int(path.parent.name))
    return pids


def start(*words: str, **variables: str) -> subprocess.Popen[str]:
    """As `make demo-gateway` runs it, in a pipe."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.nginx.demo", *words],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def path_without_redis(folder: Path) -> str:
    for name in ("nginx", "wrk", "setpriv"):
        (folder / name).symlink_to(command(name, name))
    return str(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_as_a_command_it_tells_every_second_and_ends_with_a_table(kind: Kind, tmp_path: Path) -> None:
    path = os.environ["PATH"] if kind == "redis" else path_without_redis(tmp_path)
    with start(f"{SECONDS:g}", PATH=path) as running:
        out, _ = running.communicate(timeout=60)
    assert running.returncode == 0, out
    assert out.startswith(f"{kind.capitalize()}, a backend and two nginx are starting")
    assert re.findall(r"^ *(\d+ s|all)  nginx 1 ", out, re.M) == ["1 s", "2 s", "3 s", "4 s", "all"]
    assert len(re.findall(r"^ +together( +[\d,]+){7}$", out, re.M)) == 5
    assert re.search(r"^phone +[\d,]+ +\d+ +1?\d\d\.\d +100/s burst 20 in all$", out, re.M)
    assert re.search(r"^the bot .* 2/s burst 4 at each nginx$", out, re.M)
    assert 'A refused buyer gets 429, the page "So many of you!"' in out
    assert re.findall(r"^(\d)\. ", out, re.M) == ["1", "2", "3"]
    assert max(map(len, out.splitlines())) < 80
    assert "\x1b" not in out
    assert session(running.pid) == []


def test_in_a_terminal_it_is_one_page_of_80_by_24() -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    line = [sys.executable, "-m", "tests.nginx.demo", "3"]
    running = subprocess.Popen(
        line,
        cwd=ROOT,
        env=environment | {"TERM": "xterm", "PYTHONUTF8": "1"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen = b"".join(iter(partial(read, master), b"")).decode()
    os.close(master)
    assert running.wait(20) == 0, seen
    before, _, rest = seen.partition("\x1b[?1049h")
    pages, given_back, after = rest.partition("\x1b[?1049l")
    assert "are starting" in before
    assert given_back
    drawn = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", page) for page in pages.split("\x1b[H")[1:]]
    assert len(drawn) == 12
    assert all(page.count("\n") < 24 and max(map(len, page.splitlines())) < 80 for page in drawn)
    assert "calm: 60 requests a second" in drawn[0]
    assert "the doors are open" in drawn[-1]
    assert "\x1b[32m" in pages
    assert "▂" in after
    assert "3. A flood does not reach Redis" in after


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other side has closed
        return b""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_takes_its_servers_along(sent: signal.Signals, code: int) -> None:
    with start("60") as running:
        assert running.stdout is not None
        while " together " not in running.stdout.readline():
            pass
        assert len(session(running.pid)) > GATES
        if sent == signal.SIGINT:
            os.killpg(running.pid, sent)  # as a terminal does
        else:
            running.send_signal(sent)
        assert running.wait(20) == code
        until(lambda: f"still there: {left}" if (left := session(running.pid)) else None, 5)


def test_invalid_seconds_are_refused() -> None:
    for words in (["0"], ["x"], ["1", "2"]):
        ran = subprocess.run(
            [sys.executable, "-m", "tests.nginx.demo", *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ran.returncode, ran.stdout) == (2, "")
        assert ran.stderr == "demo-gateway: say how many seconds, from 3 to 600, or nothing\n"


def line(item: str, status: int, gate: str, rule: str, buyer: str) -> str:
    """As nginx writes it."""
    request = f'127.0.0.1 [2026-03-01T12:00:00+00:00] "POST /buy/{item} HTTP/1.1" {status} 242 0.000'
    return f"{request} gate={gate} rule={rule} remaining=0 dry_run= buyer={buyer}"


def test_a_log_is_counted() -> None:
    broken_off, undecided = (
        line("mug", 502, "PASSED", "each-item", "ada"),
        line("mug", 200, "", "", "ada"),
    )
    tally = LogCounts()
    tally.read(
        [
            line("phone", 200, "PASSED", "each-item", "ada"),
            line("phone", 429, "REJECTED", "each-buyer", "bot"),
            line("mug", 200, "PASSED", "each-item", "bot"),
            broken_off,
            undecided,
            "something else",
        ]
    )
    assert tally.requests == {"phone": 2, "mug": 3}
    assert tally.sold == {"phone": 1, "mug": 1}
    assert tally.refused == {"each-buyer": 1}
    assert (tally.bot_requests, tally.bot_sold) == (2, 1)
    assert tally.odd == [broken_off, undecided, "something else"]


def test_a_missed_expectation_is_reported(ending: SaleResult) -> None:
    counts = ending.counts

    def failure(**changed: Any) -> str:
        return " | ".join(failed_expectations(ending._replace(**changed)))

    def failures_with(more: LogCounts) -> str:
        return failure(counts=counts._replace(gates=(*counts.gates, more)))

    def failures_if_arrived(arrived: Counter[str]) -> str:
        return failure(counts=counts._replace(arrived=arrived))

    many, greedy, wrong = LogCounts(), LogCounts(), LogCounts()
    many.sold["mug"], greedy.bot_sold = 10_000, 100
    wrong.odd.append("502")
    assert re.search(r"10\d+ of mug were sold, and 100/s burst 20 allows 470", failures_with(many))
    assert "2/s burst 4 at each nginx allows 26" in failures_with(greedy)
    assert "no sale and no refusal, such as: 502" in failures_with(wrong)
    assert "0 of phone were sold after the doors opened: fewer than" in failures_if_arrived(ending.opened.arrived)
    assert "and the backend saw {'phone': 1}" in failures_if_arrived(Counter(phone=1))
    assert "after the doors opened, and 100/s" in failures_if_arrived(counts.arrived + Counter(phone=500))
    assert "and the buyers made" in failure(visits=ending.visits + 1)
    assert "2 connections of buyers broke" in failure(
        wrk_reports=[each._replace(broken=1) for each in ending.wrk_reports]
    )
    assert "no friendly page, but 503" in failure(page=ending.page._replace(status=503))
    of_nginx = b"<h1>429 Too Many Requests</h1>"
    assert "no friendly page, but 429" in failure(page=ending.page._replace(body=of_nginx))
