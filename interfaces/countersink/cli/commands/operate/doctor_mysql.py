"""Checks of ``countersink doctor`` on MySQL or MariaDB, with their limits and advice: hosts,
clusters, variables, rights, clock, schema, dead rows, entries that Redis has lost, counters with
too many keys, and the last ``verify``. They change nothing.
"""

import time
from collections.abc import Iterator
from typing import Final

from countersink.cli import output
from countersink.cli.commands.operate.findings import Finding, clock, fail, named, ok, warn
from countersink.counting.apply import dead, key_caps, queue_losses
from countersink.database import galera, hosts
from countersink.database.connection import connect
from countersink.database.errors import SchemaMismatch, StoreError
from countersink.database.session import Session
from countersink.database.sessions import require_schema, schema_version
from countersink.database.sql import NOW_MS, SEVERAL_PRIMARIES, is_galera, is_on
from countersink.database.url import Settings
from countersink.runtime.texts import iso, plural
from countersink.schedules import runs

_LEAST_NODES: Final = 3
"""Least number of nodes of a Galera cluster, or of members of a replication group, without a
warning. If one of three fails, the other two are still a majority."""
_PAUSED: Final = 0.05
"""Largest share of the time, from 0 to 1, in which flow control may pause writes without a warning.
The time is since the last FLUSH STATUS."""
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
"""Tables in which rows are inserted and deleted, each with a column that is updated (None if none
is)."""
_INSERT: Final = "INSERT INTO {0} SELECT * FROM {0} WHERE FALSE"
_DELETE: Final = "DELETE FROM {0} WHERE FALSE"
_UPDATE: Final = "UPDATE {0} SET {1} = {1} WHERE FALSE"


def lines(url: str) -> Iterator[Finding]:
    """Yield the findings of all checks on the database. If the URL names several hosts, the
    findings on each host come first. If the URL is wrong or no connection can be made, the last
    finding is a failure that says so. If the tables are missing, have another version or cannot be
    read, the last finding is a failure that says so, and the tables are not checked. StoreError is
    raised if the server fails in another check."""
    try:
        settings = Settings.parse(url)
        if settings.others:
            yield from _hosts(settings)
        session = connect(settings)
    except SchemaMismatch as error:
        yield from named("schema", fail(str(error), "run countersink migrate, which creates it"))
        return
    except StoreError as error:
        advice = (
            "start the server, or correct COUNTERSINK_MYSQL_URL (host, port, user, password, TLS)"
        )
        if SEVERAL_PRIMARIES in str(error):
            advice = "SELECT group_replication_switch_to_single_primary_mode()"
        yield from named("mysql", fail(str(error), advice))
        return
    with session:
        variables = _variables(session)
        cipher = dict(session.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")).get("Ssl_cipher")
        encrypted = f"encrypted with {cipher}" if cipher else "not encrypted"
        yield from named("mysql", ok(f"{session.dialect}, {encrypted}"))
        yield from named("mysql writable", _writable(variables))
        yield from named("mysql clock", _clock(session))
        yield from named("mysql durability", *_durability(variables))
        if isinstance(session, galera.GaleraSession):
            yield from named("galera", *_galera(session))
        if variables.get("group_replication_group_name"):
            yield from named("mysql group", _members(session))
            yield from named("mysql group consistency", _consistency(variables))
        yield from named("mysql binary log", _binlog(variables))
        yield from named("mysql isolation", _isolation(session, variables))
        try:
            version = schema_version(session)
            require_schema(session)
        except SchemaMismatch as error:
            advice = "upgrade countersink" if error.newer else "run countersink migrate"
            yield from named("schema", fail(str(error), advice))
            return
        except StoreError as error:
            yield from named("mysql rights", fail(str(error), _grant(session)))
            return
        yield from named("schema", ok(f"version {version}"))
        yield from named("mysql tables", _engines(session))
        yield from named("mysql rights", _rights(session))
        yield from named("dead rows", _dead(session))
        yield from named("queue losses", *_losses(session))
        yield from named("keys per day", _overflow(session))
        yield from named("verify", _verify(session))


def _hosts(settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each host of a URL with several hosts: a warning if the host does not
    answer or refuses, else ``ok`` with a text: whether countersink uses the host, or that it is a
    Galera node that takes writes. Then yield a failure if several hosts take writes and do not all
    belong to one cluster."""
    writers: dict[str, object] = {}
    for host in settings.each_host():
        try:
            with connect(host, database=False) as session:
                variables = _variables(session)
                why_not = hosts.why_read_only(variables, session.query)
                if is_galera(variables):
                    why_not = galera.read_node(session).trouble
                cluster = _cluster(session, variables)
        except StoreError as error:
            advice = "start it, or remove it from COUNTERSINK_MYSQL_URL"
            finding = warn(hosts.reason(error), advice)
        else:
            if why_not:
                finding = ok(f"not used: {why_not}")
            elif is_galera(variables):
                finding = ok("a Galera node, Synced")
            else:
                finding = ok("not used: takes writes, but is not the first" if writers else "used")
            if not why_not:
                writers[host.where] = cluster
        yield from named(f"mysql host {host.where}", finding)
    if len(set(writers.values())) > 1:
        several = fail(
            f"{' and '.join(writers)} take writes, but are not a cluster: counts on one of them are"
            " missing on the others",
            "SET GLOBAL read_only = 1 (MySQL: super_read_only) on all but one, and in my.cnf",
        )
        yield from named("mysql writers", several)


def _cluster(session: Session, variables: dict[str, str]) -> object:
    """Return the identity of a server's Galera cluster or replication group: it is equal for all
    members. Return the identity of the server itself if it belongs to neither. ``variables`` are
    the server's global variables."""
    if is_galera(variables):
        return _status(session)["wsrep_cluster_state_uuid"]
    # The URL may have two names of one server.
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
                f"{name} is {variables[name]}: is this a replica?",
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
            f"innodb_flush_log_at_trx_commit {flush}: a crash loses about a second of counts, "
            "which are no longer in Redis",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in my.cnf",
        )
    if variables.get("log_bin") == "ON" and variables.get("sync_binlog") != "1":
        yield warn(
            f"sync_binlog {variables.get('sync_binlog')}: a crash can make replicas differ",
            "SET GLOBAL sync_binlog = 1, and in my.cnf",
        )


def _galera(session: galera.GaleraSession) -> Iterator[Finding]:
    """Yield the findings on a Galera cluster: one with its size and the node to which countersink
    writes (a warning if it has fewer than three nodes), and a warning if flow control paused writes
    for too long."""
    node = galera.read_node(session)
    status = _status(session)
    size = int(status.get("wsrep_cluster_size", 0))
    where = node.address or session.where.where
    found = f"{plural(size, 'node')}; countersink writes to {where}"
    if size < _LEAST_NODES:
        yield warn(
            found, "run three nodes: if two lose their connection, neither of them takes writes"
        )
    else:
        yield ok(found)
    paused = float(status.get("wsrep_flow_control_paused", 0))
    if paused > _PAUSED:
        yield warn(
            f"flow control: a slow node paused writes for {paused:.0%} of the time",
            "find the node with the largest wsrep_local_recv_queue_avg, and the reason",
        )


def _consistency(variables: dict[str, str]) -> Finding:
    consistency = variables.get("group_replication_consistency", "")
    if consistency != "EVENTUAL":
        return ok(f"group_replication_consistency {consistency}")
    # Countersink's own sessions set this variable.
    return warn(
        "group_replication_consistency EVENTUAL: after a failover, apps that count in their own"
        " transactions may read old settings of counters",
        "SET PERSIST group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER' on each member",
    )


def _members(session: Session) -> Finding:
    """Return the finding on the members of a replication group (MySQL's Group Replication). It is a
    failure if half of them or more are not online. It is a warning if any is not online, if fewer
    than three are, if their versions differ, or if the list of members cannot be read."""
    try:
        members = session.query(
            "SELECT CONCAT(member_host, ':', member_port), member_state, member_role,"
            " member_version FROM performance_schema.replication_group_members ORDER BY 1"
        )
    except StoreError as error:
        return warn(
            f"members unknown: {error}",
            "GRANT SELECT ON performance_schema.replication_group_members to this user",
        )
    listed = ", ".join(f"{where} {state} {role}".rstrip() for where, state, role, _ in members)
    online = sum(state == "ONLINE" for _, state, _, _ in members)
    if 2 * online <= len(members):
        return fail(f"no majority: {listed}", "start the missing members, or repair the network")
    if online < len(members) or online < _LEAST_NODES:
        return warn(
            f"{plural(online, 'member')} online; with fewer than {_LEAST_NODES}, the death of one"
            f" more stops all counting: {listed}",
            "start the others, and run START GROUP_REPLICATION there",
        )
    versions = sorted({str(version) for *_, version in members})
    if len(versions) > 1:
        return warn(f"members of versions {', '.join(versions)}: {listed}", "upgrade the older")
    return ok(f"{listed}, {versions[0]}")


def _binlog(variables: dict[str, str]) -> Finding:
    if variables.get("log_bin") != "ON":
        return ok("off")
    style = variables.get("binlog_format", "ROW")  # MySQL without the variable has only ROW
    if style == "STATEMENT":
        return fail(
            "binlog_format STATEMENT cannot log READ COMMITTED, so every batch fails",
            "SET GLOBAL binlog_format = 'ROW', and in my.cnf",
        )
    return ok(f"binlog_format {style}")


def _isolation(session: Session, variables: dict[str, str]) -> Finding:
    name = "transaction_isolation" if "transaction_isolation" in variables else "tx_isolation"
    ours = str(session.query(f"SELECT @@SESSION.{name}")[0][0])
    found = f"{ours} on countersink's connections"
    if ours.upper() != "READ-COMMITTED":
        return fail(
            found, "let the proxy pass SET SESSION to the server, without multiplexing of sessions"
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
            f"{name} is {engine}: a failed batch would not be rolled back",
            f"ALTER TABLE {name} ENGINE = InnoDB",
        )
    return ok("all InnoDB")


def _rights(session: Session) -> Finding:
    updated = dict(_TABLES)
    if isinstance(session, galera.GaleraSession):
        updated["writer_fence"] = "uses"
    of_workers = [_INSERT.format(table) for table in _TABLES]
    of_workers += [_UPDATE.format(table, column) for table, column in updated.items() if column]
    of_others = [_DELETE.format(table) for table in _TABLES]
    of_others.append(_UPDATE.format("control", "pruned_before"))
    for statement in (*of_workers, *of_others):
        try:
            # The statement needs the right, but changes no row.
            with session.transaction():
                session.execute(statement)
        except StoreError as error:
            if statement in of_workers:
                return fail(str(error), _grant(session))
            found = "the rights of a worker: no DELETE, no changes of settings"
            return warn(found, f"for all other processes: {_grant(session)}")
    return ok("SELECT, INSERT, UPDATE, DELETE on the tables")


def _grant(session: Session) -> str:
    user, database = session.query("SELECT CURRENT_USER(), DATABASE()")[0]
    name, _, host = str(user).rpartition("@")
    return f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO '{name}'@'{host}'"


def _dead(session: Session) -> Finding:
    number = sum((*dead.count(session).values(), *dead.not_kept(session).values()))
    if number:
        return warn(
            f"{plural(number, 'row')} could not be counted",
            "see countersink dead list, then retry or drop them",
        )
    return ok("none")


def _losses(session: Session) -> Iterator[Finding]:
    losses = queue_losses.recent(session)
    for loss in losses:
        lost = f"Redis has lost {loss}"
        if loss.entries:
            yield fail(
                f"{lost}, and they were never applied",
                "run countersink backfill --mode reconcile on the logs of that time, if there are"
                " any; why Redis loses entries: docs/operations.md",
            )
        else:
            yield warn(
                f"{lost}: it was emptied, or replaced by an older copy, while no worker ran",
                "compare that time with the logs: countersink backfill --mode reconcile --dry-run",
            )
    if not losses:
        yield ok(f"none in the last {queue_losses.SHOWN_DAYS} days")


def _verify(session: Session) -> Finding:
    for run in runs.last_runs(session, job="verify", states=runs.ENDED, limit=1):
        if run.state == "failed":
            found = f"the last run failed, at {iso(run.ended_at)}: {run.detail}"
            advice = "docs/operations.md says what each problem means, and what to do"
            return fail(found, advice)
        return ok(f"{run.state} at {iso(run.ended_at)}: {run.detail}")
    return ok("has not run yet")


def _overflow(session: Session) -> Finding:
    overflown = key_caps.overflown_by_counter(session)
    if overflown:
        names = output.first_names(list(overflown))
        return warn(
            f"{sum(overflown.values()):,} of {names} went to {key_caps.OVERFLOW} since yesterday",
            "find what makes so many keys, or run countersink counter set NAME --max-keys N",
        )
    return ok("no counter has more keys than it may have")
