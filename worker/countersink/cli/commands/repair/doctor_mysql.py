"""Checks of ``countersink doctor`` on MySQL or MariaDB: each of several hosts, variables, rights,
TLS, schema, dead rows, entries that Redis has lost; what warns, what fails, and the advice for
each. Nothing is changed."""

import time
from collections.abc import Iterator
from typing import Final

from countersink.cli import output
from countersink.cli.commands.repair.doctor import DoctorCheck, Finding
from countersink.store import galera, hosts, queue_losses
from countersink.store.apply import dead, key_caps
from countersink.store.connection import Session, connect
from countersink.store.errors import SchemaMismatch, StoreError
from countersink.store.sessions import require_schema, schema_version
from countersink.store.settings import Settings
from countersink.store.sql import NOW_MS, SEVERAL_PRIMARIES, is_galera, is_on

_LEAST_NODES: Final = 3
"""Of a Galera cluster: with one away the others still are more than half."""
_PAUSED: Final = 0.05
"""Share of the time that flow control may hold up writes, since statistics were reset."""
_ENOUGH_MEMBERS: Final = 3
"""Members of a group of which one may die."""
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
        yield DoctorCheck("schema").fail(str(error), "run countersink migrate, which creates it")
        return
    except StoreError as error:
        yield DoctorCheck("mysql").fail(
            str(error),
            "SELECT group_replication_switch_to_single_primary_mode()"
            if SEVERAL_PRIMARIES in str(error)
            else "start the server, or correct COUNTERSINK_MYSQL_URL (host, port, user, password,"
            " TLS)",
        )
        return
    with session:
        yield DoctorCheck("mysql").ok(str(session.dialect))
        variables = _variables(session)
        yield _writable(variables)
        yield _tls(session)
        yield from _durability(variables)
        if isinstance(session, galera.GaleraSession):
            yield from _galera(session)
        yield from _group(session, variables)
        yield _binlog(variables)
        yield _isolation(session, variables)
        yield from _schema(session)


def ahead_ms(url: str) -> int | None:
    """The server's clock minus this machine's in ms; None when it does not answer."""
    try:
        with connect(url, database=False) as session:
            before = time.time()
            server = int(session.query(f"SELECT {NOW_MS}")[0][0])
            return round(server - (before + time.time()) * 500)
    except StoreError:
        return None


def _hosts(settings: Settings) -> Iterator[Finding]:
    """A line for each host, and one about all that take writes."""
    writers: dict[str, object] = {}
    for host in settings.each_host():
        check = DoctorCheck(f"mysql host {host.where}")
        try:
            with connect(host, database=False) as session:
                variables = _variables(session)
                why_not = hosts.why_not(variables, session.query)
                if is_galera(variables):
                    why_not = galera.look(session).trouble
                cluster = _cluster(session, variables)
        except StoreError as error:
            yield check.warn(
                hosts.reason(error), "start it, or take it out of COUNTERSINK_MYSQL_URL"
            )
            continue
        if why_not:
            yield check.ok(f"not used: {why_not}")
            continue
        if is_galera(variables):
            yield check.ok("a Galera node that is Synced")
        else:
            yield check.ok("not used: takes writes, but is not the first" if writers else "used")
        writers[host.where] = cluster
    if len(set(writers.values())) > 1:
        yield DoctorCheck("mysql writers").fail(
            f"{' and '.join(writers)} take writes and are no cluster: what one of them counts the"
            " others do not have",
            "SET GLOBAL read_only = 1 (MySQL: super_read_only) on all but one, and in my.cnf",
        )


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
            return DoctorCheck("mysql writable").fail(
                f"{name} is {variables[name]}: a replica?",
                "point COUNTERSINK_MYSQL_URL at the primary",
            )
    return DoctorCheck("mysql writable").ok("read_only OFF")


def _tls(session: Session) -> Finding:
    rows = session.query("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    cipher = rows[0][1] if rows else ""
    found = f"encrypted with {cipher}" if cipher else "not encrypted"
    # Whether that matters depends on the network: a socket or localhost needs none.
    return DoctorCheck("mysql encryption").ok(found)


def _durability(variables: dict[str, str]) -> Iterator[Finding]:
    check = DoctorCheck("mysql durability")
    flush = variables.get("innodb_flush_log_at_trx_commit")
    if flush == "1":
        yield check.ok("innodb_flush_log_at_trx_commit 1")
    else:
        yield check.warn(
            f"innodb_flush_log_at_trx_commit {flush}: a crash loses about a second of counts "
            "that are no longer in Redis",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 1, and in my.cnf",
        )
    if variables.get("log_bin") == "ON" and variables.get("sync_binlog") != "1":
        yield check.warn(
            f"sync_binlog {variables.get('sync_binlog')}: a crash can make replicas differ",
            "SET GLOBAL sync_binlog = 1, and in my.cnf",
        )


def _galera(session: galera.GaleraSession) -> Iterator[Finding]:
    """Size and state of a Galera cluster, which node is the writer, and how much it is held up."""
    check = DoctorCheck("galera")
    node = galera.look(session)
    found = _status(session)
    size = int(found.get("wsrep_cluster_size", 0))
    where = node.address or session.where.where
    told = f"{size} nodes, of which {where} takes all that countersink writes"
    if size < _LEAST_NODES:
        yield check.warn(
            told, "have three nodes: of two that lose each other neither takes writes any more"
        )
    else:
        yield check.ok(told)
    paused = float(found.get("wsrep_flow_control_paused", 0))
    if paused > _PAUSED:
        yield check.warn(
            f"flow control: writes were held up {paused:.0%} of the time by a node that is behind",
            "see which one has the largest wsrep_local_recv_queue_avg, and why",
        )


def _group(session: Session, variables: dict[str, str]) -> Iterator[Finding]:
    """Of a member of Group Replication: lines about its group."""
    if not variables.get("group_replication_group_name"):
        return
    yield _members(session)
    check = DoctorCheck("mysql group consistency")
    consistency = variables.get("group_replication_consistency", "")
    if consistency == "EVENTUAL":
        # Countersink's own sessions set what they need.
        yield check.warn(
            "group_replication_consistency EVENTUAL: after a failover, apps that count in their own"
            " transactions read settings of counters from before it",
            "SET PERSIST group_replication_consistency = 'BEFORE_ON_PRIMARY_FAILOVER' on each",
        )
    else:
        yield check.ok(f"group_replication_consistency {consistency}")


def _members(session: Session) -> Finding:
    check = DoctorCheck("mysql group")
    try:
        members = session.query(
            "SELECT CONCAT(member_host, ':', member_port), member_state, member_role,"
            " member_version FROM performance_schema.replication_group_members ORDER BY 1"
        )
    except StoreError as error:
        return check.warn(
            f"its members are not known: {error}",
            "GRANT SELECT ON performance_schema.replication_group_members to this user",
        )
    named = ", ".join(f"{where} {state} {role}".rstrip() for where, state, role, _ in members)
    online = sum(state == "ONLINE" for _, state, _, _ in members)
    if 2 * online <= len(members):
        return check.fail(
            f"no majority: {named}", "start the members that are missing, or see to the network"
        )
    if online < len(members) or online < _ENOUGH_MEMBERS:
        return check.warn(
            f"{online} members are online; with fewer than {_ENOUGH_MEMBERS} the next one that"
            f" dies stops all counting: {named}",
            "start the others, and START GROUP_REPLICATION there",
        )
    versions = sorted({str(version) for *_, version in members})
    if len(versions) > 1:
        return check.warn(
            f"members of versions {', '.join(versions)}: {named}", "upgrade the older ones"
        )
    return check.ok(f"{named}, {versions[0]}")


def _binlog(variables: dict[str, str]) -> Finding:
    check = DoctorCheck("mysql binary log")
    if variables.get("log_bin") != "ON":
        return check.ok("off")
    style = variables.get("binlog_format", "ROW")  # gone from MySQL: always ROW
    if style == "STATEMENT":
        return check.fail(
            "binlog_format STATEMENT: READ COMMITTED cannot be logged so, and every batch fails",
            "SET GLOBAL binlog_format = 'ROW', and in my.cnf",
        )
    return check.ok(f"binlog_format {style}")


def _isolation(session: Session, variables: dict[str, str]) -> Finding:
    name = "transaction_isolation" if "transaction_isolation" in variables else "tx_isolation"
    ours = str(session.query(f"SELECT @@SESSION.{name}")[0][0])
    found = f"{ours} on countersink's connections"
    if ours.upper() != "READ-COMMITTED":
        return DoctorCheck("mysql isolation").fail(
            found, "let the proxy in between pass SET SESSION on (no multiplexing of our sessions)"
        )
    return DoctorCheck("mysql isolation").ok(found)


def _schema(session: Session) -> Iterator[Finding]:
    try:
        found = schema_version(session)
        require_schema(session)
    except SchemaMismatch as error:
        advice = "upgrade countersink" if error.newer else "run countersink migrate"
        yield DoctorCheck("schema").fail(str(error), advice)
        return
    except StoreError as error:
        yield DoctorCheck("mysql rights").fail(str(error), _grant(session))
        return
    yield DoctorCheck("schema").ok(f"version {found}")
    yield _engines(session)
    yield _rights(session)
    yield _dead(session)
    yield from _losses(session)
    yield _overflow(session)


def _engines(session: Session) -> Finding:
    rows = session.query(
        "SELECT table_name, engine FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_type = 'BASE TABLE' AND engine <> 'InnoDB'"
    )
    if rows:
        name, engine = rows[0]
        return DoctorCheck("mysql tables").fail(
            f"{name} is {engine}: nothing is undone when a batch fails",
            f"ALTER TABLE {name} ENGINE = InnoDB",
        )
    return DoctorCheck("mysql tables").ok("all InnoDB")


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
            return DoctorCheck("mysql rights").fail(str(error), _grant(session))
    return DoctorCheck("mysql rights").ok("SELECT, INSERT, UPDATE, DELETE on the tables")


def _grant(session: Session) -> str:
    user, database = session.query("SELECT CURRENT_USER(), DATABASE()")[0]
    name, _, host = str(user).rpartition("@")
    return f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO '{name}'@'{host}'"


def _dead(session: Session) -> Finding:
    number = sum((*dead.count(session).values(), *dead.not_kept(session).values()))
    if number:
        return DoctorCheck("dead rows").warn(
            f"{number:,} rows could not be counted",
            "see countersink dead list, then retry or drop them",
        )
    return DoctorCheck("dead rows").ok("none")


def _losses(session: Session) -> Iterator[Finding]:
    check = DoctorCheck("queue losses")
    losses = queue_losses.recent(session)
    for loss in losses:
        told = f"Redis has lost {loss}"
        if loss.entries:
            yield check.fail(
                f"{told}, and they were never applied",
                "countersink backfill --mode reconcile the logs of that time, if there are any;"
                " why Redis loses entries: docs/operations.md",
            )
        else:
            yield check.warn(
                f"{told}: it was emptied, or replaced by an older copy, while nobody looked",
                "compare that time with the logs: countersink backfill --mode reconcile --dry-run",
            )
    if not losses:
        yield check.ok(f"none noticed in the last {queue_losses.SHOWN_DAYS} days")


def _overflow(session: Session) -> Finding:
    found = key_caps.overflown_by_counter(session)
    if found:
        named = output.few(list(found))
        return DoctorCheck("keys per day").warn(
            f"{sum(found.values()):,} of {named} went to {key_caps.OVERFLOW} since yesterday",
            "see what makes so many keys, or countersink counter set NAME --max-keys N",
        )
    return DoctorCheck("keys per day").ok("within the caps of all counters")
