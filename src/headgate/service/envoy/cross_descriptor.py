"""What the reference service looks at across all descriptors of a request, and a rulebook decides call by call.

    replaces     a limit that one descriptor meets takes out what other descriptors meet, by name
    unlimited    is told by the largest number that fits, where no rule at all is told by none
    quota_mode   of the quotas that the descriptors meet one that has room is enough

All need to know which rules a descriptor meets before anybody is asked. Most books say none of it, and then
nothing is looked up twice.

A descriptor is taken out if all that it meets is replaced. Files of the reference service give a descriptor one
limit at most, so there it is the same; of several rules of our own that one descriptor meets, those are kept
together.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.rules.match import Match, Matcher
from headgate.rules.matching.replaced_rules import Replacing
from headgate.rules.rule import Rule, Rulebook
from headgate.service.envoy.request import DescriptorCheck

LIMITED, UNLIMITED, REPLACED, QUOTA = range(4)


class CrossDescriptor:
    """A rulebook, as it looks at whole requests."""

    def __init__(self, book: Rulebook) -> None:
        self.book = book
        self._replacing = Replacing(book.rules)
        self.needed: bool = bool(self._replacing) or any(
            rule.quota_mode or _knows_no_limit(rule) for rule in book.rules
        )
        self._matcher = Matcher(book)

    def sort(self, asked: Sequence[DescriptorCheck]) -> list[int]:
        """For each, whether it is limited at all, and how."""
        met: list[Sequence[Match]] = [
            () if question.override else self._matcher.match(question.ask.attributes) for question in asked
        ]
        out = self._replacing.taken_out(match.rule.name for matches in met for match in matches if match.earnest)
        kinds = [_kind(matches, out) for matches in met]
        taking = [kind == QUOTA and not question.back for kind, question in zip(kinds, asked, strict=True)]
        # One alone is a limit like any other.
        several = sum(taking) > 1
        return [LIMITED if kind == QUOTA and not (quota and several) else kind
                for kind, quota in zip(kinds, taking, strict=True)]  # fmt: skip


def _kind(matches: Sequence[Match], out: dict[str, str]) -> int:
    if not matches:
        return LIMITED
    if all(match.rule.name in out for match in matches):
        return REPLACED
    if all(not match.limits and match.denied is None for match in matches):
        return UNLIMITED
    return QUOTA if all(match.rule.quota_mode for match in matches) else LIMITED


def _knows_no_limit(rule: Rule) -> bool:
    return not all([rule.limit.otherwise, *(limits for _, limits in rule.limit.cases)])
