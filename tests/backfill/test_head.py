"""A source that is damaged near its beginning: what stands before the damage counts."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from countersink.backfill.contents import open_content
from countersink.backfill.head import head_of
from countersink.backfill.inputs import Input
from countersink.backfill.options import Unreadable
from tests.backfill.helpers import add, details, keys_of, long_log, outcomes, totals, write


def test_what_stands_before_a_cut_counts_and_the_whole_copy_goes_on(
    mysql_url: str, tmp_path: Path
) -> None:
    content = long_log(300)
    packed = gzip.compress(content)
    cut = write(tmp_path / "cut.gz", packed[: len(packed) // 2])
    for again in False, True:
        report = add(mysql_url, cut)
        assert outcomes(report) == ["failed"]
        assert "cannot be read on from byte" in details(report)
        assert (report.counted > 0) is not again
        assert 0 < sum(totals(mysql_url).values()) < 300
    assert outcomes(add(mysql_url, cut, dry_run=True)) == ["failed"]
    report = add(mysql_url, write(tmp_path / "whole.gz", packed))
    assert (report.state, report.lines + report.known_lines) == ("done", 300)
    assert report.known_lines > 0
    assert totals(mysql_url) == keys_of(300)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstandard.compress])
def test_where_nothing_can_be_read_it_is_said(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = write(tmp_path / "source", pack(long_log(300))[:20])
    with open_content(Input("source", path, None)) as source, pytest.raises(Unreadable):
        head_of(source)
