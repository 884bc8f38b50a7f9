"""A source that is damaged near its beginning: what stands before the damage counts."""

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from countersink.backfill.errors import Unreadable
from countersink.backfill.input.content import head_of, open_content
from countersink.backfill.input.files import Input
from tests.backfill.helpers import Logs, details, keys_of, long_log, outcomes, write


def test_what_stands_before_a_cut_counts_and_the_whole_copy_goes_on(logs: Logs) -> None:
    content = long_log(300)
    packed = gzip.compress(content)
    cut = logs.write("cut.gz", packed[: len(packed) // 2])
    for again in False, True:
        report = logs.add(cut)
        assert outcomes(report) == ["failed"]
        assert "cannot be read on from byte" in details(report)
        assert (report.counted > 0) is not again
        assert 0 < sum(logs.totals().values()) < 300
    assert outcomes(logs.add(cut, dry_run=True)) == ["failed"]
    report = logs.add(logs.write("whole.gz", packed))
    assert (report.state, report.lines + report.known_lines) == ("done", 300)
    assert report.known_lines > 0
    assert logs.totals() == keys_of(300)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstandard.compress])
def test_where_nothing_can_be_read_it_is_said(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = write(tmp_path / "source", pack(long_log(300))[:20])
    with open_content(Input("source", path, None)) as source, pytest.raises(Unreadable):
        head_of(source)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("nuls", [64 * 1024 - 10, 65 * 1024])
@pytest.mark.parametrize(
    "content",
    [
        b'{"time_iso8601":"2026-03-14T12:00:00Z","request":"GET /a HTTP/1.1"}\n',
        b"#Fields: date time cs-uri-stem\n2026-03-14 12:00:00 /a\n",
    ],
)
def test_a_log_that_was_truncated_under_its_writer_tells_its_format(
    logs: Logs, content: bytes, nuls: int, dry_run: bool
) -> None:
    source = logs.write("access.log", b"\0" * nuls + content)
    report = logs.add(source, input_format="auto", dry_run=dry_run)
    assert (report.counted, report.rejected) == (1, 0)
