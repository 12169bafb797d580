"""A rule in a few words: its limits, whose calls it counts, and how it is enforced."""

from __future__ import annotations

from headgate.engines.overrides import join_limits
from headgate.rules.rule import Rule
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.page_layout import View


def limit_texts(rule: Rule) -> str:
    """Returns the limits of a rule; those of its cases in their order.

    >>> [rule] = load.from_mapping({"rules": [{"name": "api", "limit": "9/s", "key": "user"}]}).rules
    >>> limit_texts(rule)
    '9/s · user'
    """
    cases = [*(limits for _, limits in rule.limit.cases), rule.limit.otherwise]
    texts = dict.fromkeys(join_limits(limits) or "unlimited" for limits in cases)
    key = ", ".join(str(dimension) for dimension in rule.key)
    return " | ".join(texts) + (f" · {key}" if key else "")


def mode_badges(view: View, rule: Rule | None) -> Html:
    """Returns what is not plainly enforced, as badges."""
    if rule is None:
        return Html("")
    badges = []
    if rule.mode.shadow:
        share = "" if rule.mode.shadow == 10_000 else f" {rule.mode.shadow / 100:g} %"
        badges.append(("shadow", view.t("shadow") + share))
    if 0 < rule.mode.enforce < 10_000:
        badges.append(("stage", view.t("enforced for {share} %", share=f"{rule.mode.enforce / 100:g}")))
    if not rule.mode.enforce and not rule.mode.shadow:
        badges.append(("off", view.t("off")))
    if rule.candidate is not None:
        badges.append(("candidate", view.t("candidate")))
    return join(html(' <span class="badge {kind}">{text}</span>', kind=kind, text=text) for kind, text in badges)
