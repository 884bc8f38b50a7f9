"""``countersink info``: the state of the installation (backlog, oldest entry, workers, dead rows,
lost entries), as JSON and as text, and ``--watch``, which shows it again and again.

``/v1/system`` and ``/metrics`` use the same JSON. See ``job_runs.py`` for the scheduled jobs."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from math import inf
from typing import Any, Final, TypeVar

import click
import redis

from countersink.cli import output, settings
from countersink.cli.commands.operate import job_runs
from countersink.cli.errors import Misuse
from countersink.counting.apply import dead, key_caps, queue_losses
from countersink.database.session import Session
from countersink.runtime.texts import ago, iso_ms, plural
from countersink.stream.connection import MemoryUse, cluster_of, mapped, memory_use, time_us
from countersink.stream.errors import StreamError, StreamRefused, StreamUnavailable
from countersink.stream.names import (
    GROUP,
    WORKER_KEY_PREFIX,
    master_of,
    stream_key,
    used_partitions,
)
from countersink.stream.progress import TTL_S, first_arrived

NO_MASTER: Final = "no master"
"""Text in place of a master's address where a hash slot of a cluster has no master."""
SILENT: Final = "silent"
"""State of a worker that sent no heartbeat for :data:`SILENT_S` seconds, as after SIGKILL."""
SILENT_S: Final = 5
_NUMBERS: Final = frozenset(
    (
        *("pid", "slot", "entries", "duplicates", "rows", "cells"),
        *("dead", "too_old", "overflown", "lost", "last_batch_ms", "silent_s"),
    )
)
_TIMES: Final = frozenset(("started", "updated", "last_batch", "last_error_at"))


@click.command("info", cls=settings.Command)
@settings.one_off("--watch", is_flag=True, help="Refresh the output until Ctrl-C.")
@settings.setting(
    "--every",
    type=click.FloatRange(0.1),
    default=2.0,
    metavar="SECONDS",
    help="Seconds between two refreshes of --watch.",
)
@settings.redis_options("table", "json")
@settings.urls("mysql_url")
def command(watch: bool, every: float) -> None:
    """Show the backlog of the queue, its age, and the workers.

    Dead rows and scheduled jobs are read from MySQL; without one of the servers, the rest is shown.
    At the end are jobs that failed three times in a row, or verify if it failed, with the error."""
    if watch and settings.option_value("format") == "json":
        raise Misuse("--watch and --format json exclude each other: leave out one of them")
    client, mysql_url = settings.open_queue("countersink-info"), settings.option_value("mysql_url")
    if watch:
        _watch(lambda: render(system_state(client, mysql_url)), every)
        return
    try:
        state = system_state(client, mysql_url)
    except StreamUnavailable:
        found = _database_state(mysql_url)
        if found["dead_unknown"] is None and settings.option_value("format") == "table":
            click.echo(f"{output.facts(_losses(found))}\n\n{job_runs.render(found['schedules'])}")
        raise
    output.write_result(state, lambda: click.echo(render(state)))


def system_state(client: redis.Redis, mysql_url: str | None) -> dict[str, Any]:
    """Return the document of ``--format json``, read from Redis and MySQL. If ``mysql_url`` is
    None, or MySQL does not answer or refuses, the members that come from MySQL, and those of
    ``schedules``, are null; ``dead_unknown`` and ``schedules.unknown`` then have the reason.

    Raises:
        StreamError: Redis does not answer or refuses. In a cluster: no master answers."""
    return {**queue_state(client), **_database_state(mysql_url)}


def _database_state(mysql_url: str | None) -> dict[str, Any]:
    """Return the members of :func:`system_state` that come from MySQL."""
    names = ("dead", "dead_by_reason", "dead_not_kept", "overflown", "lost")
    uncounted = job_runs.ask_mysql(mysql_url, _uncounted, names, "dead_unknown")
    return {**uncounted, "schedules": job_runs.schedules_state(mysql_url)}


def _uncounted(session: Session) -> dict[str, Any]:
    """Return the numbers of dead rows, the amount counted in ``__overflow__`` since yesterday (UTC)
    with the number of its counters, and the losses of entries in Redis. Names of counters are left
    out, because readers of this document may not be allowed to see all counters."""
    by_reason, by_counter = dead.count(session), key_caps.overflown_by_counter(session)
    return {
        "dead": sum(by_reason.values()),
        "dead_by_reason": by_reason,
        "dead_not_kept": dead.not_kept_by_reason(session),
        "overflown": {"amount": sum(by_counter.values()), "counters": len(by_counter)},
        "lost": {
            "entries": queue_losses.total(session),
            "recent": [
                output.document(
                    loss,
                    ("stream", "entries", "waited", "since", "noticed_at"),
                    entries=loss.entries or None,
                    since=iso_ms(loss.since),
                    noticed_at=iso_ms(loss.noticed_at),
                )
                for loss in queue_losses.recent(session)
            ],
        },
    }


def _typed(fields: dict[str, str]) -> dict[str, Any]:
    typed: dict[str, Any] = {}
    for name, text in sorted(fields.items()):
        number = int(text) if text.isdecimal() else None
        if name in _NUMBERS:
            typed[name] = number
        elif name in _TIMES:
            typed[name] = iso_ms(number) if number else None
        elif name == "rate":
            typed["rows_per_second"] = float(text) if text.replace(".", "", 1).isdecimal() else None
        else:
            typed[name] = text
    return typed


def _watch(screen: Callable[[], str], every: float) -> None:
    while True:
        try:
            shown = screen()
        except StreamUnavailable as error:
            shown = output.display(f"{error}; trying again")
        click.clear()  # has no effect without a terminal
        click.echo(shown)
        time.sleep(every)


def render(found: Mapping[str, Any]) -> str:
    """Return the document of :func:`system_state` as text."""
    schedules = job_runs.render(found["schedules"])
    return "\n\n".join([_summary(found), _workers(found), schedules])


def _summary(found: Mapping[str, Any]) -> str:
    facts = {
        "backlog": f"{_entries(found['backlog'])}, {found['pending']:,} of them with a worker",
        "oldest": _oldest(found),
        "rate": f"{found['rows_per_second']:,} rows/s",
    }
    if _is_full(found):
        facts["redis"] = "full, it refuses increments: see countersink doctor"
    for node in found["away"]:
        facts[f"away: {node['node']}"] = f"{node['error']}; its entries are not in these numbers"
    facts |= _losses(found)
    if len(found["streams"]) > 1:
        parts = (f"{s['stream']} {output.display(s['entries'])}" for s in found["streams"])
        facts["streams"] = ", ".join(parts)
    return output.facts(facts)


def _losses(found: Mapping[str, Any]) -> dict[str, str]:
    facts = {"dead rows": _dead(found), "lost": _lost(found), "overflow": _overflown(found)}
    return {name: text for name, text in facts.items() if text}


def _is_full(found: Mapping[str, Any]) -> bool:
    return MemoryUse(**found["memory"]).full


def _oldest(found: Mapping[str, Any]) -> str:
    if found["oldest"] is None:
        return "nothing waits" if not found["away"] else "nothing waits on nodes that answer"
    return f"waiting for {ago(found['lag_ms'] / 1000)}, since {found['oldest']}"


def _dead(found: Mapping[str, Any]) -> str:
    if found["dead"] is None:
        return f"unknown: {found['dead_unknown']}"
    not_kept = sum(found["dead_not_kept"].values())
    if not found["dead"] and not not_kept:
        return "none"
    reasons = ", ".join(f"{name} {number:,}" for name, number in found["dead_by_reason"].items())
    text = f"{found['dead']:,}{f' ({reasons})' if reasons else ''}"
    if not_kept:
        text += f", and {not_kept:,} more that {'was' if not_kept == 1 else 'were'} not kept"
    return f"{text}: see countersink dead list"


def _lost(found: Mapping[str, Any]) -> str:
    recent = (found["lost"] or {"recent": ()})["recent"]
    if not recent:
        return ""
    number = sum(loss["entries"] or 0 for loss in recent)
    waited = sum(loss["waited"] for loss in recent)
    if not number and not waited:
        return "what came before Redis was emptied or replaced, if anything: see countersink doctor"
    many = f"at least {number:,}" if number else "an unknown number"
    return f"{many} of {_entries(waited)} that waited in Redis: see countersink doctor"


def _overflown(found: Mapping[str, Any]) -> str:
    over = found["overflown"]
    if not over or not over["counters"]:
        return ""
    return (
        f"{over['amount']:,} of {plural(over['counters'], 'counter')} since yesterday, with more"
        " keys than a day may have: see countersink counter list"
    )


def _entries(number: int) -> str:
    return plural(number, "entry", "entries")


def _workers(found: Mapping[str, Any]) -> str:
    if not found["workers"] and found["away"]:
        return "Workers unknown: a node that may have their heartbeats does not answer"
    if not found["workers"] and _is_full(found):
        return "Workers unknown: Redis is full, and takes no reports of theirs"
    if not found["workers"]:
        return "No worker runs: start one with countersink worker"
    columns = (
        *("worker", "state", "->slot", ">rows/s", "->entries", "->rows", "->duplicates"),
        *("->dead", ">last batch", "last error"),
    )
    names = ("state", "slot", "rows_per_second", "entries", "rows", "duplicates", "dead")
    rows = []
    for worker in found["workers"]:
        since = _since(found["at"], worker.get("last_batch"))
        last_error = worker.get("last_error") or "-"
        if worker.get("state") == SILENT:
            last_error = f"no report for {ago(worker['silent_s'])}"
        elif at := worker.get("last_error_at"):
            last_error += f" ({_since(found['at'], at)})"
        rows.append((worker["worker"], *map(worker.get, names), since, last_error))
    return output.table(columns, rows)


def _since(now: str, then: str | None) -> str:
    if not then:
        return "-"
    seconds = (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()
    return f"{ago(max(0.0, seconds))} ago"


def queue_state(client: redis.Redis) -> dict[str, Any]:
    """Return the state of the queue and of the workers as JSON, read from Redis. The member
    ``away`` lists the masters of a cluster that do not answer; the sums lack their entries.

    Raises:
        StreamError: Redis does not answer or refuses. In a cluster: no master answers."""
    now, away = now_and_away(client)
    streams = stream_states(client, now, away)
    published: dict[str, dict[str, str]] = {}
    for found in ask_masters(client, away, _published):
        published |= found
    workers = [{"worker": name, **_typed(f)} for name, f in sorted(published.items())]
    for worker in workers:
        if worker["silent_s"] > SILENT_S:
            worker |= {"state": SILENT, "rows_per_second": 0.0}
    memory = ask_masters(client, away, memory_use)
    fullest = max(memory, key=lambda each: each.used / (each.limit or inf), default=MemoryUse(0, 0))
    waiting = [each for each in streams if each["oldest"] is not None]
    return {
        "at": iso_ms(now),
        "backlog": sum(each["entries"] or 0 for each in streams),
        "pending": sum(each["pending"] or 0 for each in streams),
        "oldest": min((each["oldest"] for each in waiting), default=None),
        "lag_ms": max((each["lag_ms"] for each in waiting), default=0),
        "rows_per_second": round(sum(one.get("rows_per_second") or 0.0 for one in workers), 1),
        "memory": fullest._asdict(),
        "streams": streams,
        "away": [{"node": node, "error": error} for node, error in away.items()],
        "workers": workers,
    }


Reply = TypeVar("Reply")


def ask_masters(
    client: redis.Redis,
    away: dict[str, str],
    ask: Callable[[redis.Redis], Reply],
) -> list[Reply]:
    """Call ``ask`` with the client of a single Redis, or with a client of each master of a cluster,
    and return the list of results.

    Masters that ``away`` contains are skipped; the list is empty if these are all. A master that
    does not answer within a second, or refuses, is added to ``away`` with the reason, so that later
    calls skip it.

    Raises:
        StreamError: Redis does not answer or refuses. In a cluster: none of the masters that were
            asked gave a result."""
    cluster = cluster_of(client)
    with mapped():
        if cluster is None:
            return [ask(client)]
        masters = cluster.masters()
    replies = []
    last: StreamError | None = None
    for address in masters:
        if address.text in away:
            continue
        try:
            with mapped(), cluster.with_short_timeout.asked(address) as master:
                replies.append(ask(master))
        except (StreamUnavailable, StreamRefused) as error:
            away[address.text] = str(error)
            last = error
    if last is not None and not replies:
        raise last
    return replies


def now_and_away(client: redis.Redis) -> tuple[int, dict[str, str]]:
    """Return the time of Redis in Unix ms (the latest of all masters), and the masters that do not
    answer or refuse, each with the reason. Raises StreamError if no server answers."""
    away: dict[str, str] = {}
    return max(ask_masters(client, away, time_us)) // 1000, away


def stream_states(client: redis.Redis, now: int, away: dict[str, str]) -> list[dict[str, Any]]:
    """Return the states of the partitions that producers use or ever used, sorted by number: one
    JSON document for each. Of a master that does not answer, partitions no longer used are missing.

    A state has the number of entries (applied ones are deleted), the number of pending entries, the
    time of the oldest entry, its age ``lag_ms``, and the bytes of memory. All are null if the node
    does not answer; time and age also without entries, and bytes if the stream does not exist.

    Args:
        client: the client of Redis.
        now, away: from :func:`now_and_away`. The masters in ``away`` are skipped; others that do
            not answer now are added to ``away``.

    Raises:
        StreamError: Redis does not answer or refuses. In a cluster: no node answers.
    """
    states = []
    single = cluster_of(client) is None

    def add_away(node: str, error: StreamError) -> None:
        away.setdefault(node, str(error))

    for partition in used_partitions(client, on_silence=add_away):
        key = stream_key(partition)
        node = master_of(client, partition) or (None if single else NO_MASTER)
        state = {"partition": partition, "stream": key, "node": node, **dict.fromkeys(_STREAM)}
        if node is None:
            state |= _stream(client, key, now)
        elif node not in away:
            try:
                state |= _stream(client, key, now)
            except (StreamUnavailable, StreamRefused) as error:
                away[node] = str(error)
        states.append(state)
    return states


_STREAM: Final = ("entries", "pending", "oldest", "lag_ms", "bytes")
"""Members of a partition's document that are null if the partition's node does not answer."""


def _stream(client: redis.Redis, key: str, now: int) -> dict[str, Any]:
    with mapped():
        entries = int(client.xlen(key))
        groups: Any = client.xinfo_groups(key) if client.exists(key) else []
        size = client.memory_usage(key)
    pending = (int(g["pending"]) for g in groups if as_text(g["name"]) == GROUP)
    oldest = first_arrived(client, [key])
    waits = (None, None) if oldest is None else (iso_ms(oldest), max(0, now - oldest))
    return dict(zip(_STREAM, (entries, next(pending, 0), *waits, size), strict=True))


def _published(client: redis.Redis) -> dict[str, dict[str, str]]:
    """Return the workers' last heartbeats that one server has, by the worker's consumer name. Each
    is a dict of texts (see ``stream/progress.py``), with its age in seconds as ``silent_s``."""
    workers: dict[str, dict[str, str]] = {}
    for key in client.scan_iter(match=f"{WORKER_KEY_PREFIX}*", count=1000):
        fields: Any = client.hgetall(key)
        if fields:  # the key may have expired since the SCAN
            name = as_text(key).removeprefix(WORKER_KEY_PREFIX)
            workers[name] = {as_text(k): as_text(v) for k, v in fields.items()}
            workers[name]["silent_s"] = str(TTL_S - int(client.ttl(key)))
    return workers


def as_text(value: bytes | str) -> str:
    """Return a reply of Redis, which may be bytes, as text."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
