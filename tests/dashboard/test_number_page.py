"""Find a number: uploads are bounded and never stay, their analysis is streamed, and a limit becomes a draft."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headgate.service.dashboard import translation
from headgate.service.dashboard.number_page import PHASE_TEXTS, SCRIPT_TEXTS
from headgate.service.dashboard.number_result import NUMBER_TEXTS
from headgate.service.dashboard.upload import MAX_UPLOAD_BYTES
from tests.dashboard.dashboard_harness import Site, Visitor
from tests.dashboard.upload_harness import Uploader, names_of_uploads, open_deleted_files
from tests.traffic.sample_logs import combined_text, scan, visits

STATIC = Path(translation.__file__).parent / "static"
LOG = combined_text([*visits(120), *scan(6000.0, 600, per_second=5)]).encode()


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of temporary files for this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def child_processes() -> list[str]:
    folder = Path(f"/proc/self/task/{os.getpid()}")
    return [
        pid
        for task in folder.parent.iterdir()
        for pid in (task / "children").read_text().split()
        if b"job_process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


async def test_a_log_becomes_a_suggestion_and_is_gone(site: Site, operator: Visitor) -> None:
    reply = await Uploader(operator).send_file(LOG)
    assert reply.status == 200, reply
    *progress, result = reply.events
    assert progress[0]["phase"] == "Reading the log"
    words = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", result["html"]))
    assert "access.log: combined log, " in words
    assert " for each address" in words
    assert "scanner" in words
    assert len(result["grid"]["rows"]) > 5
    assert result["grid"]["named"][0][0] == "address=203.0.113.66"
    assert (names_of_uploads(), open_deleted_files(), child_processes()) == ([], 0, [])
    [entry] = await site.site.admin.handlers.audit_trail.latest(5)
    assert (entry.event, entry.author, entry.details) == (
        "log uploaded",
        "ann",
        {"log": "access.log", "bytes": len(LOG)},
    )


async def test_a_chinese_reader_gets_chinese(operator: Visitor) -> None:
    operator.cookies["headgate_language"] = "zh"
    reply = await Uploader(operator).send_file(LOG)
    assert reply.events[0]["phase"] == "读取日志"
    assert "谁会被拒绝" in reply.events[-1]["html"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "access.log is empty."),
        (b"\n\n", "access.log is empty."),
        (
            bytes(range(256)) * 100,
            "access.log is binary, not a log of lines of text. Text, gzip and zstd can be read.",
        ),
        (b"address,path\n192.0.2.1,/a\n192.0.2.2,/a\n", "access.log: no time was found. "),
        (b"\x1f\x8b broken", "access.log cannot be decompressed: "),
        (LOG.splitlines()[0], "There is only one call, which says nothing about a limit."),
    ],
)
async def test_what_is_no_log_is_refused_with_the_command_line_s_sentence(
    operator: Visitor, data: bytes, sentence: str
) -> None:
    reply = await Uploader(operator).send_file(data)
    assert reply.error.startswith(sentence), reply.error
    assert (names_of_uploads(), open_deleted_files(), child_processes()) == ([], 0, [])


async def test_a_large_file_is_refused_before_it_is_read(operator: Visitor) -> None:
    uploader = Uploader(operator)
    reply = await uploader.upload(megabytes(101), {"content-length": "101000000"})
    assert (reply.status, uploader.bytes_sent) == (413, 0)
    assert reply.error.startswith("A log may have at most 100 MB. Compress it by gzip or zstd")


async def test_a_large_file_of_unsaid_length_is_refused_at_the_bound(operator: Visitor) -> None:
    uploader = Uploader(operator)
    reply = await uploader.upload(megabytes(110))
    assert reply.status == 413
    assert MAX_UPLOAD_BYTES < uploader.bytes_sent <= MAX_UPLOAD_BYTES + 1_000_000
    assert (names_of_uploads(), open_deleted_files()) == ([], 0)


async def megabytes(number: int) -> AsyncIterator[bytes]:
    for _ in range(number):
        yield bytes(1_000_000)


async def test_a_client_that_hangs_up_leaves_nothing(operator: Visitor) -> None:
    seen: list[tuple[list[str], int]] = []

    async def half() -> AsyncIterator[bytes]:
        yield LOG
        seen.append((names_of_uploads(), open_deleted_files()))
        raise ConnectionResetError

    assert (await Uploader(operator).upload(half())).status == 0
    assert seen == [([], 1)]  # a file without a name: a crash at this point leaves nothing on the disk
    assert open_deleted_files() == 0
    assert (await Uploader(operator).send_file(LOG)).status == 200  # the next one can be uploaded


async def test_a_page_that_is_closed_ends_the_analysis(operator: Visitor) -> None:
    uploader = Uploader(operator)
    log = b"".join(line for line in LOG.splitlines(keepends=True) for _ in range(100))
    uploading = asyncio.ensure_future(uploader.send_file(log))
    await uploader.received_lines.wait()
    assert len(child_processes()) == 1
    uploader.left.set()
    reply = await uploading
    assert "html" not in reply.events[-1]
    await operator._site.site.dashboard.close()  # waits for what it ends
    assert child_processes() == []
    assert open_deleted_files() == 0


async def test_a_full_disk_is_reported(operator: Visitor) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    token = await Uploader(operator).form_token()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, hard))
    try:
        reply = await Uploader(operator).upload(megabytes(5), token=token)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert reply.status == 507
    assert re.match(r"The file cannot be stored in /\S+: File too large\. Make room there", reply.error)
    assert (names_of_uploads(), open_deleted_files()) == ([], 0)


async def test_one_log_is_read_at_a_time(operator: Visitor) -> None:
    first, second = Uploader(operator), Uploader(operator)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield LOG
        begun.set()
        await go_on.wait()

    uploading = asyncio.ensure_future(first.upload(slow()))
    await begun.wait()
    reply = await second.send_file(LOG)
    assert (reply.status, reply.error) == (
        409,
        "Another log is being read: one at a time. Try again in a moment.",
    )
    go_on.set()
    assert "html" in (await uploading).events[-1]


async def test_another_worker_reads_no_log_meanwhile(site: Site, operator: Visitor) -> None:
    async with Site() as other_worker:  # with the admin address of the first
        colleague = Visitor(other_worker)
        await colleague.log_in(user="oleg")
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield LOG
            begun.set()
            await go_on.wait()

        uploading = asyncio.ensure_future(Uploader(operator).upload(slow()))
        await begun.wait()
        reply = await Uploader(colleague).send_file(LOG)
        assert (reply.status, reply.error[:29]) == (409, "Another log is being read: on")
        go_on.set()
        assert "html" in (await uploading).events[-1]
        assert (await Uploader(colleague).send_file(LOG)).status == 200
    assert os.listdir(tempfile.gettempdir()) == []


async def test_viewers_and_strangers_upload_nothing(operator: Visitor, viewer: Visitor, stranger: Visitor) -> None:
    assert (await viewer.get("/dashboard/number")).status == 403
    assert "Find a number" not in (await viewer.get("/dashboard/")).words
    for visitor, token, status in (
        (viewer, await Uploader(viewer).form_token(), 403),
        (stranger, "", 401),
        (operator, "", 403),
        (operator, await Uploader(viewer).form_token(), 403),
    ):
        uploader = Uploader(visitor)
        reply = await uploader.upload(megabytes(1), token=token)
        assert (reply.status, uploader.bytes_sent) == (status, 0)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"by": "address/99"}, '"address/99" is no way to count addresses'),
        ({"where": "method"}, '"method" is no condition'),
        ({"refuse": "200"}, '"200" is no percentage'),
        ({"zone": "Mars"}, '"Mars" is no time zone'),
        ({"fields": "time"}, '"time" does not say which field is what'),
        ({"by": "a" * 600}, "by may have 500 characters."),
    ],
)
async def test_options_are_checked_before_anything_is_uploaded(
    operator: Visitor, options: dict[str, str], sentence: str
) -> None:
    uploader = Uploader(operator)
    fields = {"form": await uploader.form_token(), **options}
    checked = await operator.post("/dashboard/number/check", fields, **{"x-requested-with": "page"})
    assert sentence in json.loads(checked.text)["error"]
    reply = await uploader.upload(megabytes(1), query=options)
    assert (reply.status, uploader.bytes_sent) == (400, 0)
    assert sentence in reply.error


async def test_a_choice_is_a_draft_in_the_editor_and_nothing_is_published(site: Site, operator: Visitor) -> None:
    before = site.limiter.rulebook
    page = await operator.get("/dashboard/number")
    fields = {"limit": "2/s burst 20", "by": "address", "where": "path: /api/**", "log": "access.log"}
    draft = await operator.send_form(page, "/dashboard/number/shadow", **fields)
    assert draft.status == 200
    for words in ('"name": "per-address"', '"limit": "2/s burst 20"', '"mode": "shadow"', "Publish version 2"):
        assert words in draft.words
    assert 'value="2/s burst 20 in shadow, from access.log"' in draft.text
    assert 'name="base" value="1"' in draft.text
    assert site.limiter.rulebook is before
    wrong = await operator.send_form(page, "/dashboard/number/shadow", **{**fields, "limit": "2/ss"})
    assert wrong.status == 400
    assert "2/ss" in wrong.words


@pytest.mark.parametrize("path", ["/dashboard/number", "/dashboard/playground"])
async def test_the_pages_have_no_inline_code(operator: Visitor, path: str) -> None:
    page = await operator.get(path)
    assert "unsafe" not in (page.field("content-security-policy") or "unsafe")
    assert not re.search(r"\son[a-z]+=|\sstyle=|<style|javascript:|<script>", page.text)


def test_every_text_of_the_scripts_is_translated() -> None:
    used = set()
    for name in ("number.js", "frontier.js", "playground.js"):
        used |= set(re.findall(r'(?:headgate\.text|fill)\(\s*"([^"]+)"', (STATIC / name).read_text()))
    used -= {"Time", "Offered", "Passed", "Delayed", "Refused"}
    assert used <= {*SCRIPT_TEXTS, *NUMBER_TEXTS}
    assert {*SCRIPT_TEXTS, *NUMBER_TEXTS, *PHASE_TEXTS.values()} <= set(translation.IN_CHINESE)
