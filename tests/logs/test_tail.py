"""Counting a log: where a run begins and ends, and that no line is counted twice or skipped."""

import gzip
import os
from collections import Counter
from pathlib import Path
from threading import Thread

import pytest
import redis

from countersink.logs import sender
from countersink.logs.errors import LogError, PositionError, TailError, UnknownFormat
from countersink.logs.lines import BLOCK_BYTES, LONGEST
from countersink.runtime.process import Stop
from countersink.stream.connection import connect
from countersink.stream.names import PARTITIONS_KEY, stream_key
from tests.logs.tailing import Tailing, append, counted, line, write
from tests.support.factories import RedisFactory
from tests.support.proxies.redis_proxy import RedisProxy
from tests.support.proxies.rules import Deed, Phase
from tests.support.waiting import eventually


def test_a_run_adds_what_is_new_and_one_from_the_start_all_of_it(tailing: Tailing) -> None:
    assert tailing.count("/a", "/b", "/a").counted == 3
    assert tailing.run().counted == 0
    assert tailing.count("/c").counted == 1
    assert counted(tailing.client) == {"/a": 2, "/b": 1, "/c": 1}
    assert tailing.run(begin="start").counted == 4
    assert tailing.run().counted == 0
    assert counted(tailing.client) == {"/a": 4, "/b": 2, "/c": 2}


def test_rejected_lines_carry_their_number_in_the_file(tailing: Tailing) -> None:
    write(tailing.log, "/a")
    append(tailing.log, b"nonsense\n\nmore of it\n")
    assert tailing.run().rejected == 2
    append(tailing.log, b"again\n")
    assert tailing.run().rejected == 1
    assert [number for _, number in tailing.told.lines] == [2, 4, 5]
    assert tailing.run().rejected == 0


def test_begin_start_of_an_emptied_log_forgets_too(tailing: Tailing) -> None:
    tailing.count("/a")
    os.truncate(tailing.log, 0)
    assert tailing.run(begin="start").counted == 0
    tailing.count("/b")
    assert counted(tailing.client) == {"/a": 1, "/b": 1}
    assert tailing.told.notices == []


def test_counters_and_kinds_of_key_have_positions_of_their_own(
    redis_client: redis.Redis, log: Path
) -> None:
    write(log, "/a")
    Tailing(redis_client, log).run()
    Tailing(redis_client, log, kind="status").run()
    assert counted(redis_client) == {"/a": 1, "200": 1}


def test_a_log_that_is_not_there_is_an_error(tailing: Tailing) -> None:
    with pytest.raises(LogError, match="No such file"):
        tailing.run()
    tailing.log.mkdir()
    with pytest.raises(LogError, match="not a file"):
        tailing.run()


def test_hits_in_one_minute_share_a_row(tailing: Tailing) -> None:
    tailing.count(*["/a"] * 5000)
    assert tailing.client.xlen(stream_key(0)) == 1
    assert counted(tailing.client) == {"/a": 5000}


def test_more_rows_than_an_entry_holds_become_several(tailing: Tailing) -> None:
    tailing.count(*(f"/{number}" for number in range(2500)))
    assert tailing.client.xlen(stream_key(0)) == 3
    assert counted(tailing.client).total() == 2500


def test_line_ends_blanks_and_holes(tailing: Tailing) -> None:
    append(tailing.log, line("/crlf") + b"\r\n\r\n\n" + b"\0" * 100 + line("/hole") + b"\n")
    append(tailing.log, b"\0" * (2 * BLOCK_BYTES) + line("/big hole") + b"\n")
    assert tailing.run().rejected == 0
    assert counted(tailing.client) == {"/crlf": 1, "/hole": 1, "/big hole": 1}
    assert tailing.run().counted == 0


def test_a_line_may_have_a_mebibyte(tailing: Tailing) -> None:
    """As many as for `countersink backfill`."""
    for more in 0, 1:
        start = line(f"/{more}")[:-1]
        append(tailing.log, start + b"x" * (LONGEST + more - len(start) - 1) + b'"\n')
        write(tailing.log, "/a")
    assert tailing.run().rejected == 1
    assert counted(tailing.client) == {"/0": 1, "/a": 2}


def test_a_byte_order_mark_is_not_of_the_first_line(redis_client: redis.Redis, log: Path) -> None:
    append(log, b"\xef\xbb\xbf" + line("/a") + b"\n")
    for log_format in "", '%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-agent}i"':
        tailing = Tailing(redis_client, log, kind="host", log_format=log_format)
        assert tailing.run(begin="start").counted == 1
    assert tailing.run().counted == 0
    assert counted(redis_client) == {"10.0.0.1": 2}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x04\x22\x4d\x18" + line("/a"), r"compressed by lz4.*: unpack it first \(lz4cat\)"),
        (line("/a").decode().encode("utf-16"), "is UTF-16; convert it first: iconv"),
        (line("/a").decode().encode("utf-32"), "is UTF-32; convert it first"),
    ],
)
def test_what_is_not_read_is_refused(tailing: Tailing, data: bytes, said: str) -> None:
    append(tailing.log, data)
    with pytest.raises(LogError, match=said):
        tailing.run()


def test_an_endless_line_is_rejected_and_the_next_one_counted(tailing: Tailing) -> None:
    write(tailing.log, "/a")
    append(tailing.log, b"x" * (LONGEST + 3 * BLOCK_BYTES + 7) + b"\n")
    assert tailing.count("/b").rejected == 1
    assert tailing.told.lines == [("access.log", 2)]
    assert counted(tailing.client) == {"/a": 1, "/b": 1}
    assert tailing.run().rejected == 0


class TestUntold:
    """Lines of which it is not told what they are are not passed over."""

    def test_they_are_refused_and_counted_when_it_is_said(self, tailing: Tailing) -> None:
        append(tailing.log, b"\n1779000000.000;/a\n1779000000.000;/b\n")
        for _ in range(2):
            with pytest.raises(
                UnknownFormat, match=r"line 2: .* by --input-format or --log-format"
            ):
                tailing.run()
        tailing.log_format = "$msec;$uri"
        assert tailing.run().counted == 2
        assert counted(tailing.client) == {"/a": 1, "/b": 1}

    def test_following_waits_for_a_line_that_tells_it(self, tailing: Tailing) -> None:
        append(tailing.log, b"the server starts\n" * 20)
        with tailing.following():
            eventually(lambda: tailing.mark.read() != "")
            append(tailing.log, b"it listens\n" * 20 + line("/a") + b"\n")
            eventually(lambda: counted(tailing.client) == {"/a": 1})
        assert [number for _, number in tailing.told.lines] == [*range(1, 41)]

    def test_following_waits_for_a_hundred_lines(self, tailing: Tailing) -> None:
        append(tailing.log, b"the server starts\n" * 100)
        with pytest.raises(UnknownFormat):
            tailing.run(follow=True)

    def test_a_stop_before_leaves_them_for_the_next_run(self, tailing: Tailing) -> None:
        append(tailing.log, b"the server starts\n" + line("/a")[:-3])
        with tailing.following():
            eventually(lambda: tailing.mark.read() != "")
        tailing.stop = Stop()
        append(tailing.log, line("/a")[-3:] + b"\n")
        summary = tailing.run()
        assert (summary.counted, summary.rejected) == (1, 1)

    def test_a_rotated_log_is_read_again(self, tailing: Tailing) -> None:
        append(tailing.log, b"the server starts\n")
        with tailing.following():
            eventually(lambda: tailing.mark.read() != "")
        tailing.stop = Stop()
        rotated = tailing.log.with_name("access.log.1")
        tailing.log.rename(rotated)
        write(tailing.log, "/b")
        with pytest.raises(UnknownFormat):
            tailing.run()
        write(rotated, "/a")
        assert tailing.run().counted == 2
        assert counted(tailing.client) == {"/a": 1, "/b": 1}

    def test_a_new_log_is_of_the_format_of_the_one_before(self, tailing: Tailing) -> None:
        write(tailing.log, "/a")
        with tailing.following():
            eventually(lambda: counted(tailing.client) == {"/a": 1})
            tailing.log.rename(tailing.log.with_name("access.log.1"))
            append(tailing.log, b"the server starts\n")
            eventually(lambda: tailing.told.lines == [("access.log", 1)])

    def test_a_new_log_of_w3c_goes_by_its_own_directives(self, tailing: Tailing) -> None:
        head = b"#Version: 1.0\n#Fields: date time cs-uri-stem sc-status\n"
        hit = b"2026-11-20 22:00:00 /a 200\n"
        append(tailing.log, head + hit)
        tailing.run()
        tailing.log.rename(tailing.log.with_name("access.log.1"))
        append(tailing.log, head + 2 * hit)
        assert tailing.run().counted == 2
        tailing.log.rename(tailing.log.with_name("access.log.0"))
        append(tailing.log, hit)
        for _ in range(2):
            with pytest.raises(UnknownFormat):
                tailing.run()
        assert counted(tailing.client) == {"/a": 3}

    def test_directives_behind_long_lines_stay_in_force(self, tailing: Tailing) -> None:
        """They are among the first hundred lines, by which a format is told."""
        append(tailing.log, 90 * (1_000 * b"x" + b"\n") + b"#Fields: date time cs-uri-stem\n")
        for path in (b"/a", b"/b"):
            append(tailing.log, b"2026-11-20 22:00:00 " + path + b"\n")
            assert tailing.run().counted == 1
        assert counted(tailing.client) == {"/a": 1, "/b": 1}

    @pytest.mark.parametrize("nuls", [1, 65 * 1024])
    def test_directives_behind_nuls_stay_in_force(self, tailing: Tailing, nuls: int) -> None:
        """As in a log that was truncated under a server that goes on where it was."""
        mark = b"\0" * nuls
        append(tailing.log, mark + b"#Fields: date time cs-uri-stem\n2026-11-20 22:00:00 /a\n")
        assert tailing.run().counted == 1
        append(tailing.log, b"2026-11-20 22:00:00 /b\n")
        assert tailing.run().counted == 1
        append(tailing.log, b"\xef\xbb\xbf#Fields: cs-uri-stem date time\n")
        assert tailing.run().rejected == 0
        append(tailing.log, b"/c 2026-11-20 22:00:00\n")
        assert tailing.run().counted == 1
        assert counted(tailing.client) == {"/a": 1, "/b": 1, "/c": 1}

    @pytest.mark.parametrize("prefixed", [0, 1])
    def test_a_new_log_may_have_another_envelope(self, tailing: Tailing, prefixed: int) -> None:
        for number in range(2):
            prefix = b"Nov 20 22:00:00 web nginx: " if number == prefixed else b""
            append(tailing.log, prefix + line("/a") + b"\n")
            if not number:
                tailing.run()
                tailing.log.rename(tailing.log.with_name("access.log.1"))
        tailing.run()
        assert counted(tailing.client) == {"/a": 2}


class TestLastLine:
    """A line without its newline waits for it where the file may still grow."""

    @pytest.mark.parametrize("cut", [1, 30, 70, -1, None])
    def test_it_is_counted_once_when_its_newline_comes(
        self, tailing: Tailing, cut: int | None
    ) -> None:
        whole = line("/last")
        append(tailing.log, line("/a") + b"\n" + whole[:cut])
        for _ in range(2):
            first = tailing.run()
            assert (first.rejected, first.left) == (0, 1)
        assert counted(tailing.client) == {"/a": 1}
        assert "line 2 of" in tailing.told.notices[0]
        append(tailing.log, whole[cut:] if cut else b"")
        append(tailing.log, b"\nbad\n")
        assert tailing.run().left == 0
        assert tailing.told.lines == [("access.log", 3)]
        assert counted(tailing.client) == {"/a": 1, "/last": 1}

    def test_an_endless_one_is_said(self, tailing: Tailing) -> None:
        write(tailing.log, "/a")
        append(tailing.log, b"x" * (LONGEST + 1))
        for _ in range(2):
            assert tailing.run().left == 1
        append(tailing.log, b"\n")
        assert (summary := tailing.run()).left == 0
        assert summary.rejected == 1

    def test_following_waits_for_its_newline(self, tailing: Tailing) -> None:
        append(tailing.log, line("/a") + b"\n" + line("/half")[:-5])
        with tailing.following():
            eventually(lambda: counted(tailing.client) == {"/a": 1})
            append(tailing.log, line("/half")[-5:] + b"\n")
            eventually(lambda: counted(tailing.client) == {"/a": 1, "/half": 1})
        assert tailing.told.lines == []

    def test_in_a_compressed_log_the_end_is_the_end(self, tailing: Tailing) -> None:
        tailing.log.write_bytes(gzip.compress(line("/a") + b"\n" + line("/b")[:-3]))
        assert tailing.run().rejected == 1
        assert tailing.run().rejected == 0
        assert counted(tailing.client) == {"/a": 1}


class TestCompressed:
    """gzip, told by its first bytes."""

    def test_it_is_counted_once(self, tailing: Tailing) -> None:
        lines = b"".join(line(f"/{n % 7}") + b"\n" for n in range(10_000))
        tailing.log.write_bytes(gzip.compress(lines[:1000]) + gzip.compress(lines[1000:]))
        assert tailing.run().counted == 10_000
        assert tailing.run().counted == 0

    def test_it_cannot_be_followed(self, tailing: Tailing) -> None:
        tailing.log.write_bytes(gzip.compress(line("/a") + b"\n"))
        with pytest.raises(TailError, match="leave out --follow"):
            tailing.run(follow=True)


class TestExactlyOnce:
    """Rows and position move together."""

    def test_a_lost_reply_is_answered_by_the_same_call(
        self, redis_url: str, tailing: Tailing
    ) -> None:
        write(tailing.log, "/a", "/b")
        with RedisProxy.to(redis_url) as proxy:
            rule = proxy.when("EVALSHA", Phase.AFTER, Deed.CUT)
            with connect(proxy.url(redis_url)) as client:
                client.script_load("return 1")
                tailing.run()  # so that the script is known
                write(tailing.log, "/a")
                assert tailing.run(client=client).counted == 1
            assert rule.acted == 1
        assert tailing.client.xlen(stream_key(0)) == 2
        assert counted(tailing.client) == {"/a": 2, "/b": 1}
        assert tailing.run().counted == 0

    @pytest.mark.parametrize("further", [False, True])
    def test_of_two_runs_with_a_copy_of_the_file_one_ends_and_nothing_is_doubled(
        self, redis_url: str, tailing: Tailing, log: Path, further: bool
    ) -> None:
        tailing.count("/a", "/b")
        rival = Tailing(tailing.client, log, file=log.with_name("rival"))
        rival.file.write_bytes(tailing.file.read_bytes())
        write(log, "/c")

        def goes_ahead(_: object) -> None:
            rival.run()
            if further:
                write(log, "/d")
                rival.run()

        with RedisProxy.to(redis_url) as proxy, connect(proxy.url(redis_url)) as client:
            proxy.when("EVALSHA", Phase.BEFORE, Deed.PASS, call=goes_ahead)
            if further:
                with pytest.raises(TailError, match="another countersink tail"):
                    tailing.run(client=client)
            else:  # they have read the same lines
                tailing.run(client=client)
                write(log, "/d")
                rival.run()
        write(log, "/e")
        with pytest.raises(PositionError, match="is older, or another reader's"):
            tailing.run()
        assert counted(tailing.client) == {"/a": 1, "/b": 1, "/c": 1, "/d": 1}

    def test_lines_that_another_run_has_sent_in_part_are_not_sent_again(
        self, redis_url: str, tailing: Tailing, log: Path
    ) -> None:
        """Its mark lies between two batches of this one."""
        tailing.count("/a")
        rival = Tailing(tailing.client, log, file=log.with_name("rival"))
        rival.file.write_bytes(tailing.file.read_bytes())
        write(log, "/b")
        with RedisProxy.to(redis_url) as proxy, connect(proxy.url(redis_url)) as client:

            def goes_ahead(_: object) -> None:
                whole = log.read_bytes()
                log.write_bytes(whole.removesuffix(line("/c") + b"\n"))
                rival.run()
                log.write_bytes(whole)

            write(log, "/c")
            proxy.when("EVALSHA", Phase.BEFORE, Deed.PASS, call=goes_ahead)
            with pytest.raises(TailError, match="another countersink tail"):
                tailing.run(client=client)
        assert rival.run().counted == 1
        assert counted(tailing.client) == {"/a": 1, "/b": 1, "/c": 1}

    def test_of_two_first_runs_at_once_one_ends(
        self, redis_url: str, tailing: Tailing, log: Path
    ) -> None:
        write(log, "/a")
        rival = Tailing(tailing.client, log, file=log.with_name("rival"))
        with RedisProxy.to(redis_url) as proxy:
            proxy.when("EVALSHA", Phase.BEFORE, Deed.PASS, call=lambda _: rival.run())
            with connect(proxy.url(redis_url)) as client, pytest.raises(TailError):
                tailing.run(client=client)
        assert counted(tailing.client) == {"/a": 1}

    def test_the_position_is_found_and_stays_where_it_is_when_partitions_are_added(
        self, tailing: Tailing
    ) -> None:
        tailing.client.set(PARTITIONS_KEY, 16)
        tailing.count("/a")
        assert tailing.client.xlen(tailing.mark.stream) == 1
        assert tailing.run().counted == 0
        for partitions in (1, 7, 16, 1):
            tailing.client.set(PARTITIONS_KEY, partitions)
            assert tailing.count("/b").counted == 1
        assert counted(tailing.client) == {"/a": 1, "/b": 4}


class TestMark:
    """What Redis holds of a log."""

    @pytest.mark.parametrize("mark", ["mine", "", "x 0 y"])
    def test_one_that_is_not_ours_is_refused(self, tailing: Tailing, mark: str) -> None:
        tailing.count("/a")
        write(tailing.log, "/b")
        tailing.client.set(tailing.mark.key, mark or tailing.mark.read() + "0")
        with pytest.raises(PositionError, match="--begin start"):
            tailing.run()
        assert counted(tailing.client) == {"/a": 1}

    def test_it_lies_in_the_hash_slot_of_its_stream(self, tailing: Tailing) -> None:
        mark = tailing.mark
        tags = {key[key.index("{") : key.index("}")] for key in (mark.key, mark.stream)}
        assert len(tags) == 1


class TestWaiting:
    """A log does not need to be dropped: it waits."""

    def test_it_waits_while_the_stream_is_full(self, redis_client: redis.Redis, log: Path) -> None:
        write(log, "/a")
        tailing = Tailing(redis_client, log, full=1)
        tailing.run()
        write(log, "/b")
        with tailing.following():
            eventually(lambda: any("waiting for the workers" in n for n in tailing.told.notices))
            assert redis_client.xlen(stream_key(0)) == 1
            redis_client.delete(stream_key(0))
            eventually(lambda: counted(redis_client) == {"/b": 1})
        assert "the queue takes entries again" in tailing.told.notices

    def test_it_waits_while_redis_is_away(self, own_redis_server: RedisFactory, log: Path) -> None:
        server = own_redis_server(appendfsync="always")
        with connect(server.url) as client:
            tailing = Tailing(client, log)
            write(log, "/a")
            with tailing.following():
                eventually(lambda: counted(client) == {"/a": 1})
                server.kill()
                write(log, "/b")
                eventually(lambda: any("waiting for Redis" in n for n in tailing.told.notices))
                server.start()
                with connect(server.url) as again:
                    eventually(lambda: _counted_or_none(again) == {"/a": 1, "/b": 1})
            assert "the queue takes entries again" in tailing.told.notices

    def test_a_stop_while_redis_is_away_says_that_something_is_not_stored(
        self, own_redis_server: RedisFactory, log: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server = own_redis_server()
        with connect(server.url) as client:
            tailing = Tailing(client, log)
            write(log, "/a")
            failure: list[BaseException] = []
            monkeypatch.setattr(sender, "_LAST_ATTEMPTS", 0.3)
            with tailing.made() as run:
                server.kill()

                def body() -> None:
                    try:
                        run.run()
                    except TailError as error:
                        failure.append(error)

                thread = Thread(target=body)
                thread.start()
                eventually(lambda: any("waiting for Redis" in n for n in tailing.told.notices))
                tailing.stop.request()
                thread.join(30)
            assert "are not stored" in str(failure[0])

    def test_following_waits_for_a_log_to_appear(self, tailing: Tailing) -> None:
        with tailing.following():
            eventually(lambda: any("to appear" in notice for notice in tailing.told.notices))
            write(tailing.log, "/a")
            eventually(lambda: counted(tailing.client) == {"/a": 1})


def _counted_or_none(client: redis.Redis) -> Counter[str] | None:
    try:
        return counted(client)
    except Exception:  # still coming up
        return None
