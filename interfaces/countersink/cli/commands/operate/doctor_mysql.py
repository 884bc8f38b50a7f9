"""Checks of ``countersink doctor`` on MySQL or MariaDB: each of several hosts, variables, rights,
clock, schema, dead rows, entries that Redis has lost; what warns, what fails, and the advice for
each. Nothing is changed."""

import time
from collections.abc import Iterator
from typing import Final

from countersink.cli import output
from countersink.cli.commands.operate.doctor import Finding, clock, fail, of, ok, warn
from countersink.counting.apply import dead, key_caps, queue_losses
from countersink.database import galera, hosts
from countersink.database.errors import SchemaMismatch, StoreError
from countersink.database.session import Session, connect
from countersink.database.sessions import require_schema, schema_version
from countersink.database.sql import NOW_MS, SEVERAL_PRIMARIES, is_galera, is_on
from countersink.database.url import Settings

_LEAST_NODES: Final = 3
"""Of a Galera cluster, or members of a group: with one away the others are more than half."""
_PAUSED: Final = 0.05
"""Share of the time that flow control may hold up writes, since statistics were reset."""
_TABLES: Final = {
    "counter_slot": "amount",
    "counter_ledger": "amount",
    "counter_keys": "made",
    "applied_entry": None,
    "dead_row": None,
    "dead_group": None,
    "lease": "holder",
    "queue_look": "version",
}
"""Tables in which rows are made and deleted, and of each the column that is updated."""
_PROBES: Final = (
    "SELECT 1 FROM {0} WHERE FALSE",
    "INSERT INTO {0} SELECT * FROM {0} WHERE FALSE",
    "DELETE FROM {0} WHERE FALSE",
)
_UPDATE: Final = "UPDATE {0} SET {1} = {1} WHERE FALSE"


def lines(url: str) -> Iterator[Finding]:
    """All lines about the database; the first alone when it cannot be reached."""
    try:
        settings = Settings.parse(url)
        if settings.others:
            yield from _hosts(settings)
        session = connect(settings)
    except SchemaMismatch as error:
        yield from of("schema", fail(str(error), "run countersink migrate, which creates it"))
        return
    except StoreError as error:
        advice = (
            "start the server, or correct COUNTERSINK_MYSQL_URL (host, port, user, password, TLS)"
        )
        if SEVERAL_PRIMARIES in str(error):
            advice = "SELECT group_replication_switch_to_single_primary_mode()"
        yield from of("mysql", fail(str(error), advice))
        return
    with session:
        variables = _variables(session)
        cipher = dict(session.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).get("Ssl_cipher")
        encrypted = f"encrypted with {cipher}" if cipher else "not encrypted"
        yield from of("mysql", ok(f"{session.dialect}, {encrypted}"))
        yield from of("mysql writable", _writable(variables))
        yield from of("mysql clock", _clock(session))
        yield from of("mysql durability", *_durability(variables))
        if isinstance(session, galera.GaleraSession):
            yield from of("galera", *_galera(session))
        if variables.get("group_replication_group_name"):
            yield from of("mysql group", _members(session))
            yield from of("mysql group consistency", _consistency(variables))
        yield from of("mysql binary log", _binlog(variables))
        yield from of("mysql isolation", _isolation(session, variables))
        try:
            version = schema_version(session)
            require_schema(session)
        except SchemaMismatch as error:
            advice = "upgrade countersink" if error.newer else "run countersink migrate"
            yield from of("schema", fail(str(error), advice))
            return
        except StoreError as error:
            yield from of("mysql rights", fail(str(error), _grant(session)))
            return
        yield from of("schema", ok(f"version {version}"))
        yield from of("mysql tables", _engines(session))
        yield from of("mysql rights", _rights(session))
        yield from of("dead rows", _dead(session))
        yield from of("queue losses", *_losses(session))
        yield from of("keys per day", _overflow(session))


def _hosts(settings: Settings) -> Iterator[Finding]:
    """A line for each host, and one about all that take writes."""
    writers: dict[str, object] = {}
    for host in settings.each_host():
        try:
            with connect(host, database=False) as session:
                variables = _variables(session)
                why_not = hosts.why_not(variables, session.query)
                if is_galera(variables):
                    why_not = galera.look(session).trouble
                cluster = _cluster(session, variables)
        except StoreError as error:
            advice = "start it, or take it out of COUNTERSINK_MYSQL_URL"
            finding = warn(hosts.reason(error), advice)
        else:
            if why_not:
                finding = ok(f"not used: {why_not}")
            elif is_galera(variables):
                finding = ok("a Galera node that is Synced")
            else:
                finding = ok("not used: takes writes, but is not the first" if writers else "used")
            if not why_not:
                writers[host.where] = cluster
        yield from of(f"mysql host {host.where}", finding)
    if len(set(writers.values())) > 1:
        alone = fail(
            f"{' and '.join(writers)} take writes and are no cluster: what one of them counts the"
            " others do not have",
            "SET GLOBAL read_only = 1 (MySQL: super_read_only) on all but one, and in my.cnf",
        )
        yield from of("mysql writers", alone)


def _cluster(session: Session, variables: dict[str, str]) -> object:
    """What the server shares with those that hold the same rows, by themselves."""
    if is_galera(variables):
        return _status(session)["wsrep_cluster_state_uuid"]
    # The same server may be in the URL by two of its names.
    number = session.query("SELECT @@server_id")[0][0]
    unique = variables.get("server_uuid", variables.get("server_uid"))  # MySQL's, MariaDB's
    return variables.get("group_replication_group_name") or (*session.server, number, unique)


def _status(session: Session) -> dict[str, str]:
    return {name.lower(): value for name, value in session.query("SHOW GLOBAL STATUS")}


def _variables(session: Session) -> dict[str, str]:
    return {name.lower(): value for name, value in session.query("SHOW GLOBAL VARIABLES")}


def _writable(variables: dict[str, str]) -> Finding:
    for name in hosts.READ_ONLY:
        if is_on(variables.get(name, "OFF")):
            return fail(
                f"{name} is {variables[name]}: a replica?",
                "point COUNTERSINK_MYSQL_URL at the primary",
            )
    return ok("read_only OFF")


def _clock(session: Session) -> Finding:
    before = time.time()
    server = int(session.query(f"SELECT {NOW_MS}")[0][0])
    ahead_ms = round(server - (before + time.time()) * 500)
    return clock("the database server", ahead_ms)


def _durability(variables: dict[str, str]) -> Iterator[Finding]:
    flush = variables.get("innodb_flush_log_at_trx_commit")
    if flush == "1":
        yield ok("innodb_flush_log_at_trx_commit 1")
    else:
        yield warn(
            f"innodb_flush_log_at_trx_commit {flush}: a crash loses about a second of counts "
            "that are no longer in Redis",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in my.cnf",
        )
    if variables.get("log_bin") == "ON" and variables.get("sync_binlog") != "1":
        yield warn(
            f"sync_binlog {variables.get('sync_binlog')}: a crash can make replicas differ",
            "SET GLOBAL sync_binlog = 1, and in my.cnf",
        )


def _galera(session: galera.GaleraSession) -> Iterator[Finding]:
    """Size and state of a Galera cluster, which node is the writer, and how much it is held up."""
    node = galera.look(session)
    found = _status(session)
    size = int(found.get("wsrep_cluster_size", 0))
    where = node.address or session.where.where
    told = f"{size} nodes, of which {where} takes all that countersink writes"
    if size < _LEAST_NODES:
        yield warn(
            told, "have three nodes: of two that lose each other neither takes writes any more"
        )
    else:
        yield ok(told)
    paused = float(found.get("wsrep_flow_control_paused", 0))
    if paused > _PAUSED:
        yield warn(
            f"flow control: writes were held up {paused:.0%} of the time by a node that is behind",
            "see which one has the largest wsrep_local_recv_queue_avg, and why",
        )


def _consistency(variables: dict[str, str]) -> Finding:
    consistency = variables.get("group_replication_consistency", "")
    if consistency != "EVENTUAL":
        return ok(f"group_replication_consistency {consistency}")
    # Countersink's own sessions set what they need.
    return warn(
        "group_replication_consistency EVENTUAL: after a failover, apps that count in their own"
        " transactions read settings of counters from before it",
        "SET PERSIST group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER' on each",
    )


def _members(session: Session) -> Finding:
    """The line about a group of Group Replication."""
    try:
        members = session.query(
            "SELECT CONCAT(member_host, ':', member_port), member_state, member_role,"
            " member_version FROM performance_schema.replication_group_members ORDER BY 1"
        )
    except StoreError as error:
        return warn(
            f"its members are not known: {error}",
            "GRANT SELECT ON performance_schema.replication_group_members to this user",
        )
    named = ", ".join(f"{where} {state} {role}".rstrip() for where, state, role, _ in members)
    online = sum(state == "ONLINE" for _, state, _, _ in members)
    if 2 * online <= len(members):
        return fail(
            f"no majority: {named}", "start the members that are missing, or see to the network"
        )
    if online < len(members) or online < _LEAST_NODES:
        return warn(
            f"{online} members are online; with fewer than {_LEAST_NODES} the next one that"
            f" dies stops all counting: {named}",
            "start the others, and START GROUP_REPLICATION there",
        )
    versions = sorted({str(version) for *_, version in members})
    if len(versions) > 1:
        return warn(f"members of versions {', '.join(versions)}: {named}", "upgrade the older ones")
    return ok(f"{named}, {versions[0]}")


def _binlog(variables: dict[str, str]) -> Finding:
    if variables.get("log_bin") != "ON":
        return ok("off")
    style = variables.get("binlog_format", "ROW")  # gone from MySQL: always ROW
    if style == "STATEMENT":
        return fail(
            "binlog_format STATEMENT: READ COMMITTED cannot be logged so, and every batch fails",
            "SET GLOBAL binlog_format = 'ROW', and in my.cnf",
        )
    return ok(f"binlog_format {style}")


def _isolation(session: Session, variables: dict[str, str]) -> Finding:
    name = "transaction_isolation" if "transaction_isolation" in variables else "tx_isolation"
    ours = str(session.query(f"SELECT @@SESSION.{name}")[0][0])
    found = f"{ours} on countersink's connections"
    if ours.upper() != "READ-COMMITTED":
        return fail(
            found, "let the proxy in between pass SET SESSION on (no multiplexing of our sessions)"
        )
    return ok(found)


def _engines(session: Session) -> Finding:
    rows = session.query(
        "SELECT table_name, engine FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB'"
    )
    if rows:
        name, engine = rows[0]
        return fail(
            f"{name} is {engine}: nothing is undone when a batch fails",
            f"ALTER TABLE {name} ENGINE = InnoDB",
        )
    return ok("all InnoDB")


def _rights(session: Session) -> Finding:
    statements = [probe.format(table) for table in _TABLES for probe in _PROBES]
    updated = {**_TABLES, "control": "pruned_before"}
    if isinstance(session, galera.GaleraSession):
        updated["writer_fence"] = "uses"
    statements += [_UPDATE.format(table, column) for table, column in updated.items() if column]
    for statement in statements:
        try:
            # Each of them changes no row: only the right to do it is asked for.
            with session.transaction():
                session.execute(statement)
        except StoreError as error:
            return fail(str(error), _grant(session))
    return ok("SELECT, INSERT, UPDATE, DELETE on the tables")


def _grant(session: Session) -> str:
    user, database = session.query("SELECT CURRENT_USER(), DATABASE()")[0]
    name, _, host = str(user).rpartition("@")
    return f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO '{name}'@'{host}'"


def _dead(session: Session) -> Finding:
    number = sum((*dead.count(session).values(), *dead.not_kept(session).values()))
    if number:
        return warn(
            f"{number:,} rows could not be counted",
            "see countersink dead list, then retry or drop them",
        )
    return ok("none")


def _losses(session: Session) -> Iterator[Finding]:
    losses = queue_losses.recent(session)
    for loss in losses:
        told = f"Redis has lost {loss}"
        if loss.entries:
            yield fail(
                f"{told}, and they were never applied",
                "countersink backfill --mode reconcile the logs of that time, if there are any;"
                " why Redis loses entries: docs/operations.md",
            )
        else:
            yield warn(
                f"{told}: it was emptied, or replaced by an older copy, while nobody looked",
                "compare that time with the logs: countersink backfill --mode reconcile --dry-run",
            )
    if not losses:
        yield ok(f"none noticed in the last {queue_losses.SHOWN_DAYS} days")


def _overflow(session: Session) -> Finding:
    found = key_caps.overflown_by_counter(session)
    if found:
        named = output.few(list(found))
        return warn(
            f"{sum(found.values()):,} of {named} went to {key_caps.OVERFLOW} since yesterday",
            "see what makes so many keys, or countersink counter set NAME --max-keys N",
        )
    return ok("within the caps of all counters")
