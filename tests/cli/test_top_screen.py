"""The screen of headgate top: what it shows of which counts, in 80 columns, and what keys change."""

import pytest

from headgate.cli.text_style import Style
from headgate.cli.text_table import display_width
from headgate.cli.top_screen import HotKeyRates, TopSnapshot, TopView, screen
from headgate.telemetry.decision_counts import NO_RULE, DecisionCounts

PLAIN = Style(color=False, blocks=False)
SNAPSHOT = TopSnapshot(
    "12:00:00",
    {
        "login": DecisionCounts(allowed=700, refused=300, candidate_allowed=400, candidate_refused=600),
        "everything": DecisionCounts(allowed=12_340, delayed=25),
        "search": DecisionCounts(shadow_allowed=90, shadow_refused=10),
        NO_RULE: DecisionCounts(allowed=5),
    },
    [HotKeyRates("login", "user=mallory", 1800, 1700), HotKeyRates("everything", "all", 74_000, 0)],
    [("web1:41", 1), ("web2:17", 2), ("gone:9", 500)],
)


def shown(snapshot: TopSnapshot = SNAPSHOT, keys: str = "", width: int = 80, height: int = 24) -> list[str]:
    view = TopView()
    for key in keys:
        view = view.on_key(key)
    return screen(snapshot, view, width, height, PLAIN)


def test_the_worst_rule_comes_first() -> None:
    lines = [line.rstrip() for line in shown(height=15)]
    assert lines == [
        "headgate top   12:00:00   1344 verdicts/s, 30 refused/s",
        "2 processes: web1:41, web2:17",
        "",
        "rule        calls/s  refused   %  delayed  shadow  candid.",
        "login           100       30  30        0       0       60",
        "search           10        0   0        0       1        0",
        "(no rule)       0.5        0   0        0       0        0",
        "everything     1234        0   0      2.5       0        0",
        "",
        "hot keys of the last minute  key            calls  refused",
        "login                        user=mallory   1,800    1,700",
        "everything                   all           74,000        0",
        "",
        "",
        "q quit   s sort   p pause   / filter   by refused",
    ]


def test_keys_that_a_shadow_would_refuse() -> None:
    keys = [HotKeyRates("search", "address=203.0.113.9", 180, 0, 160), HotKeyRates("search", "all", 90, 0)]
    lines = [line.rstrip() for line in shown(SNAPSHOT._replace(keys=keys))]
    assert "hot keys of the last minute  key                  calls  refused  shadow" in lines
    assert "search                       address=203.0.113.9    180        0     160" in lines


@pytest.mark.parametrize(
    ("keys", "order"),
    [("", "login"), ("s", "everything"), ("ss", "(no rule)"), ("sss", "login"), ("/sea\r", "search")],
)
def test_the_order_and_the_filter(keys: str, order: str) -> None:
    assert shown(keys=keys)[4].split("  ")[0] == order


def test_a_filter_is_typed_corrected_and_given_up() -> None:
    assert shown(keys="/logx")[-1].startswith("filter: logx_")
    assert shown(keys="/logx\x7f")[-1].startswith("filter: log_")
    assert [line for line in shown(keys="/logx\x7f\r") if line.startswith("everything ")] == []
    assert any(line.startswith("everything ") for line in shown(keys="/log\x1b"))
    assert any(line.startswith("everything ") for line in shown(keys="/log\r\x1b")), "Escape removes it"


def test_a_filter_that_no_rule_matches() -> None:
    assert shown(keys="/mallory\r")[3:7] == [
        "No rule has 'mallory' in its name; Esc shows all.",
        "",
        *(
            "hot keys of the last minute  key           calls  refused",
            "login                        user=mallory  1,800    1,700",
        ),
    ]
    assert "Nothing was counted in the last seconds." in shown(SNAPSHOT._replace(rules={}), keys="/mallory\r")


def test_pause_and_quit() -> None:
    assert "PAUSED" in shown(keys="p")[0]
    assert "PAUSED" not in shown(keys="pp")[0]
    assert TopView().on_key("q").over
    assert not TopView(typing="").on_key("q").over, "a filter may contain a q"


def test_calls_that_are_decided_without_redis() -> None:
    counts = {"login": DecisionCounts(allowed=100, by_fallback=100)}
    lines = shown(SNAPSHOT._replace(rules=counts))
    assert lines[2] == "DEGRADED: 10 calls/s are decided without Redis"
    assert shown(SNAPSHOT._replace(problem="Redis does not answer."))[2] == "Redis does not answer."


def test_the_processes_that_decide_without_redis() -> None:
    counts = {"login": DecisionCounts(allowed=100, by_fallback=100)}
    lines = shown(SNAPSHOT._replace(rules=counts, degraded=["web1:41", "nginx@web2:17"]))
    assert lines[2] == "DEGRADED: 10 calls/s are decided without Redis, by web1:41, nginx@web2:17"
    many = shown(SNAPSHOT._replace(rules=counts, degraded=["web1:41"] * 9))[2]
    assert len(many) == 80
    assert many.endswith("...")


def test_calls_that_cannot_be_decided() -> None:
    lines = shown(SNAPSHOT._replace(rules={NO_RULE: DecisionCounts(errors=25)}))
    assert lines[2:5] == ["ERRORS: 2.5 calls/s cannot be decided", "", "Nothing was counted in the last seconds."]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60)])
def test_it_fits_the_terminal(width: int, height: int) -> None:
    many = {f"a-rule-with-a-rather-long-name-{number}": DecisionCounts(allowed=10**9) for number in range(100)}
    keys = [HotKeyRates("login", "user=" + "x" * 300, 10**9, 10**9)] * 50
    for snapshot in (SNAPSHOT, SNAPSHOT._replace(rules=many, keys=keys), SNAPSHOT._replace(rules={}, keys=[])):
        lines = shown(snapshot, width=width, height=height)
        assert len(lines) == height
        if width >= 80:
            assert max(map(display_width, lines)) <= width


def test_keys_cannot_write_to_the_terminal() -> None:
    keys = [HotKeyRates("login", "\x1b[2Jann\n", 5, 5)]
    assert "\x1b" not in "".join(shown(SNAPSHOT._replace(keys=keys)))
