"""Previews: replays calls under two rulebooks, in a process of its own, and shows what differs.

A replay computes for seconds, so a second process does it, at low priority: the service decides calls meanwhile.
One preview runs at a time in a worker.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from headgate.errors import HeadgateError, InvalidRule
from headgate.service.dashboard.data_sources import DashboardSources
from headgate.service.dashboard.html import Html, html, join
from headgate.service.dashboard.number_format import share_text, span_text
from headgate.service.dashboard.page_layout import View
from headgate.telemetry.recent_records import KEPT_S

TIMEOUT_S: Final = 60.0
_NICENESS: Final = 10
_PROCESS: Final = "headgate.service.dashboard.replay_process"

Text = tuple[str, str]  # a rulebook and its format


class Previews:
    """Runs previews, one at a time."""

    def __init__(self, sources: DashboardSources) -> None:
        self._sources = sources
        self._lock = asyncio.Lock()

    async def replay_recent(self, new: Text, old: Text) -> dict[str, Any]:
        """Replays the recent records under two rulebooks; returns what happened, as a document."""
        packed, engine = self._sources.packed_records()
        job = {"new": new, "old": old, "engine": engine, "seconds": KEPT_S}
        job["packed"] = None if packed is None else [base64.b64encode(each).decode() for each in packed]
        counted = await asyncio.to_thread(self._counted_calls)
        result = await self.run(job)
        return result | {"counted": counted}

    async def replay_log(self, new: Text, old: Text, log: str) -> dict[str, Any]:
        """Replays a log that an operator has uploaded; it is deleted afterwards."""
        with tempfile.TemporaryDirectory(prefix="headgate-upload-") as folder:
            path = Path(folder) / "upload.log"
            await asyncio.to_thread(path.write_text, log, "utf-8", "replace")
            return await self.run({"new": new, "old": old, "log": str(path)})

    def _counted_calls(self) -> int:
        with suppress(HeadgateError):
            counts = self._sources.counts().last(minutes=KEPT_S // 60)
            return max((each.calls + each.shadow_calls for each in counts.values()), default=0)
        return 0

    async def run(self, job: dict[str, Any]) -> dict[str, Any]:
        """Runs a job in a process of its own; raises HeadgateError if it cannot be done."""
        if self._lock.locked():
            raise InvalidRule("Another preview is running: one at a time. Try again in a moment.")
        async with self._lock:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                _PROCESS,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICENESS)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    out, err = await process.communicate(json.dumps(job).encode())
            except TimeoutError:
                raise InvalidRule(f"The replay took longer than {TIMEOUT_S:g} s, and was stopped.") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode:
            raise RuntimeError(f"The replay failed: {err.decode('utf-8', 'replace')[-2000:]}")
        result: dict[str, Any] = json.loads(out)
        if "error" in result:
            raise InvalidRule(str(result["error"]))
        return result


def preview_html(view: View, result: dict[str, Any]) -> Html:
    """Returns what a replay showed."""
    if not result["calls"]:
        return html('<p class="empty">{text}</p>', text=view.t("There are no recent calls to replay."))
    differences = result["differences"]
    span = span_text(result["last"] - result["first"])
    seen = view.t("It saw {n} calls of {span}", n=f"{result['calls']:,}", span=span)
    if result.get("counted", 0) > result["calls"]:
        share = share_text(result["calls"], result["counted"])
        seen += view.t(", a sample of {share} of all calls: it refuses less than all would", share=share)
    tiles = join(
        html(
            '<div class="fact {level}"><b>{calls}</b> {label} <small>{keys}</small></div>',
            level=level,
            calls=f"{differences[name]:,}",
            label=label,
            keys=view.t("{n} keys", n=f"{differences['keys_' + name]:,}"),
        )
        for name, label, level in (
            ("newly_refused", view.t("newly refused"), "refused"),
            ("newly_passed", view.t("newly passed"), "passed"),
        )
    )
    rows = join(
        html(
            '<tr><th scope="row">{key}</th><td>{rule}</td><td>{old} → <b>{new}</b></td></tr>',
            key=call["key"],
            rule=call["rule"],
            old=view.t(call["old"]),
            new=view.t(call["new"]),
        )
        for call in differences["calls"]
    )
    table = html(
        '<div class="scroll" tabindex="0"><table class="preview"><tbody>{rows}</tbody></table></div>', rows=rows
    )
    return html(
        '<p>{seen}.</p><div class="fact-row">{tiles}</div>{rules}{table}',
        seen=seen,
        tiles=tiles,
        rules=_rules(view, result),
        table=table if differences["calls"] else None,
    )


def _rules(view: View, result: dict[str, Any]) -> Html:
    old = {(each["rule"], each["kind"]): each for each in result["old"]["rules"]}
    rows = []
    for each in result["new"]["rules"]:
        before = old.get((each["rule"], each["kind"]), {"refused": 0})
        if each["refused"] or before["refused"]:
            rows.append(
                html(
                    '<tr><th scope="row">{rule} <small>{kind}</small></th><td class="n">{before}</td>'
                    '<td class="n">{after}</td></tr>',
                    rule=each["rule"],
                    kind="" if each["kind"] == "live" else view.t(each["kind"]),
                    before=f"{before['refused']:,}",
                    after=f"{each['refused']:,}",
                )
            )
    if not rows:
        return Html("")
    return html(
        '<table class="preview"><thead><tr><th scope="col">{rule}</th><th scope="col" class="n">{before}</th>'
        '<th scope="col" class="n">{after}</th></tr></thead><tbody>{rows}</tbody></table>',
        rule=view.t("Refused by rule"),
        before=view.t("in force"),
        after=view.t("edited"),
        rows=rows,
    )
