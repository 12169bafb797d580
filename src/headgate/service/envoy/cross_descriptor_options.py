"""Applies rule options that look across all descriptors of a request, as the reference service does.

    replaces     a limit that one descriptor matches takes out limits of other descriptors, by name
    unlimited    reports the largest number that fits, whereas no rule at all reports none
    quota_mode   of the quotas that the descriptors match, one that has units left is enough

All need to know which rules a descriptor matches before any engine is called. Most rulebooks use none of these
options, and then nothing is matched twice.

A descriptor is taken out if all rules that it matches are replaced. Files of the reference service give a
descriptor one limit at most, so there it is the same; of several rules of our own that one descriptor matches,
either all are kept or none.
"""

from __future__ import annotations

from collections.abc import Sequence

from headgate.rules.match import Match, Matcher
from headgate.rules.matching.replaced_rules import Replacements
from headgate.rules.rule import Rule, Rulebook
from headgate.service.envoy.request import DescriptorCheck

LIMITED, UNLIMITED, REPLACED, QUOTA = range(4)


class CrossDescriptor:
    """A rulebook's options that look across descriptors."""

    def __init__(self, book: Rulebook) -> None:
        self.book = book
        self._replaced_rules = Replacements(book.rules)
        self.needed: bool = bool(self._replaced_rules) or any(
            rule.quota_mode or _can_be_unlimited(rule) for rule in book.rules
        )
        self._matcher = Matcher(book)

    def sort(self, checks: Sequence[DescriptorCheck]) -> list[int]:
        """Returns for each descriptor whether it is limited, unlimited, replaced or a quota."""
        matches_of_checks: list[Sequence[Match]] = [
            () if check.override else self._matcher.match(check.call.attributes) for check in checks
        ]
        replaced = self._replaced_rules.find_replaced(
            match.rule.name for matches in matches_of_checks for match in matches if match.enforced
        )
        kinds = [_kind(matches, replaced) for matches in matches_of_checks]
        is_quota = [kind == QUOTA and not check.is_refund for kind, check in zip(kinds, checks, strict=True)]
        # A single quota is a limit like any other.
        several_quotas = sum(is_quota) > 1
        return [LIMITED if kind == QUOTA and not (quota_taken and several_quotas) else kind
                for kind, quota_taken in zip(kinds, is_quota, strict=True)]  # fmt: skip


def _kind(matches: Sequence[Match], replaced: dict[str, str]) -> int:
    if not matches:
        return LIMITED
    if all(match.rule.name in replaced for match in matches):
        return REPLACED
    if all(not match.limits and match.denial_reason is None for match in matches):
        return UNLIMITED
    return QUOTA if all(match.rule.quota_mode for match in matches) else LIMITED


def _can_be_unlimited(rule: Rule) -> bool:
    return not all([rule.limit.otherwise, *(limits for _, limits in rule.limit.cases)])
