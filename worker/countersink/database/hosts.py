"""Choice of the host that takes writes among the hosts of a URL: reasons why a host takes none
(read only, Group Replication), the order in which hosts are asked (``SILENT_S``), and the watch
that breaks sessions to a hung host (``PATIENCE_S``). See ``galera.py`` for nodes of Galera."""

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from countersink.database.errors import (
    Misconfigured,
    OtherWriter,
    Refused,
    SchemaMismatch,
    StoreError,
    Unavailable,
)
from countersink.database.sql import GROUP, SEVERAL_PRIMARIES, is_on
from countersink.database.url import Settings

SLOW_S: Final = 1.0
"""Seconds after which a failing host counts as silent."""
SILENT_S: Final = 60.0
"""Seconds for which this process asks a silent host after the others."""
PATIENCE_S: Final = 2.0
"""Seconds that a session waits for its host before the hosts are checked."""
PROBE_S: Final = 2.0
"""Seconds that a checked host has for each reply."""
_CHECK_EVERY_S: Final = 0.5
PAUSE_S: Final = 2.0
"""Seconds between two checks of a host that takes writes, while sessions wait for it: a long
statement shall not cost two logins each second."""
LIMITS: Final = frozenset({1040, 1203, 1226})
"""Errors for too many connections, in all or of this user: the server itself works."""

LOGGER: Final = logging.getLogger("countersink.database")
Opened = TypeVar("Opened")
Ask = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs a query; its rows."""

READ_ONLY: Final = ("super_read_only", "read_only", "innodb_read_only")
"""Variables, each of which keeps the server from taking writes while it is on."""
GALERA: Final = ("wsrep_on", "wsrep_provider")
"""Variables by which a node of Galera is recognized."""
VARIABLES: Final = (*READ_ONLY, *GALERA, *GROUP)
"""Variables that :func:`why_read_only` reads; a server need not have them all."""
_MEMBERS: Final = (
    "SELECT member_id = @@server_uuid, member_state, member_role"
    " FROM performance_schema.replication_group_members"
)

_silent: Final[dict[str, float]] = {}
"""Host → time on the monotonic clock until which it is asked last."""


def why_read_only(variables: Mapping[str, str], ask: Ask) -> str:
    """The reason why a server takes no writes; empty where it takes them.

    Args:
        variables: the server's variables of :data:`VARIABLES`.
        ask: runs a query on the server: one, and only where it is a member of a group.
    """
    for name in READ_ONLY:
        if is_on(variables.get(name, "OFF")):
            return "read only"
    if not variables.get("group_replication_group_name"):
        return ""
    members = ask(_MEMBERS)
    own = [(str(state), str(role)) for is_own, state, role in members if is_own]
    state, role = own[0] if own else ("OFFLINE", "")
    if state != "ONLINE":
        return f"a group member that is {state}"
    if role != "PRIMARY":
        return f"a group member that is {role}"
    if sum(str(role) == "PRIMARY" for _, _, role in members) > 1:
        return SEVERAL_PRIMARIES
    unreachable = sum(str(state) == "UNREACHABLE" for _, state, _ in members)
    if 2 * unreachable >= len(members):
        return "a group member that does not reach the majority"
    return ""


def first_writable(settings: Settings, log_in: Callable[..., Opened]) -> Opened:
    """The result of ``log_in`` for the first host, in the URL's order, that takes writes.

    Args:
        settings: with several hosts.
        log_in: takes the settings of one host; raises Unavailable where the host takes no writes,
            OtherWriter where another node of its cluster takes them. If no host takes writes, it is
            called again with the OtherWriter error as ``former`` for each host that raised one.

    Raises:
        Unavailable: no host takes writes; the message has the reason of each.
        Refused: each host refuses the login.
        Misconfigured, SchemaMismatch: as ``log_in``.
    """
    errors: dict[str, StoreError] = {}
    asked = sorted(settings.each_host(), key=_is_silent)
    for host in asked:
        began = time.monotonic()
        try:
            opened = log_in(host)
        except (Misconfigured, SchemaMismatch):
            raise
        except StoreError as error:
            errors[host.where] = error
            # A host that names another writer has waited for the cluster.
            if time.monotonic() - began > SLOW_S and not isinstance(error, OtherWriter):
                _note_silence(host)
        else:
            _silent.pop(host.where, None)
            return opened
    for host in asked:
        met = errors[host.where]
        if isinstance(met, OtherWriter) and not _answers(met.writer, errors):
            try:
                return log_in(host, former=met)
            except StoreError as again:
                errors[host.where] = again
    reasons = [f"{each.where}: {reason(errors[each.where])}" for each in settings.each_host()]
    if all(isinstance(e, Refused) and not isinstance(e, OtherWriter) for e in errors.values()):
        raise Refused("; ".join(reasons), code=next(iter(errors.values())).code)
    raise Unavailable("no host takes writes: " + "; ".join(reasons))


def _answers(writer: str, errors: Mapping[str, StoreError]) -> bool:
    """Whether the writer answered with a connection limit or a refusal, and so serves others.

    Where the URL does not have the writer's address, any host that did so may be the writer.
    """
    suspects = [errors[writer]] if writer in errors else list(errors.values())
    return any(not isinstance(each, OtherWriter) and may_take_writes(each) for each in suspects)


def may_take_writes(error: StoreError) -> bool:
    """Whether a host that raised ``error`` at login may take writes of other clients."""
    return error.code in LIMITS or isinstance(error, Refused)


def _is_silent(host: Settings) -> bool:
    return time.monotonic() < _silent.get(host.where, 0.0)


def _note_silence(host: Settings) -> None:
    _silent[host.where] = time.monotonic() + SILENT_S


def reason(error: StoreError) -> str:
    """The reason in few words why a host could not be used."""
    if isinstance(error, OtherWriter):
        return f"a Galera node, while {error.writer} takes countersink's writes"
    cause = error.__cause__
    origin = getattr(cause, "original_exception", None) or getattr(cause, "__context__", None)
    if isinstance(origin, ConnectionRefusedError):
        return "refused the connection"
    if isinstance(origin, TimeoutError):
        return "did not answer in time"
    if isinstance(origin, socket.gaierror):
        return "the host name has no address"
    return str(error)


class Waiting(Protocol):
    """A session that :class:`Watch` can break.

    Attributes:
        where: the host that it is connected to.
        waiting_since: time on the monotonic clock since which it waits for a reply; None: it does
            not wait.
        address: the host's address within its Galera cluster; empty: it is in no cluster.
    """

    where: Settings
    waiting_since: float | None
    address: str

    def abort(self) -> None:
        """Break the connection, from any thread."""


class Watch:
    """Breaks the sessions to a hung host while another host takes writes.

    A frozen server, or one that was cut off from its group during a COMMIT, does not reply, and
    neither does a working server during a long statement. So a thread asks the host by another
    connection whether it still takes writes, and then the other hosts. On Galera the answer of the
    other nodes decides: a node that was frozen says for seconds that it takes writes, while the
    other nodes have excluded it. The outcome of a broken session's statement is unknown, as after
    any lost connection.

    Args:
        log_in: as for :func:`first_writable`; the Session that it opens is closed again.
    """

    def __init__(self, log_in: Callable[[Settings], Any]) -> None:
        self._log_in = log_in
        self._lock = threading.Lock()
        self._sessions: WeakKeyDictionary[Waiting, Settings] = WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._next: dict[Settings, float] = {}
        """Host that takes writes, while sessions wait for it → time of its next check, on the
        monotonic clock."""

    def add(self, session: Waiting, settings: Settings) -> None:
        """Watch a session to one of several hosts until the session is garbage-collected."""
        if self._pid != os.getpid():
            # In a forked child: the thread and the users of the sessions are in the parent, where
            # breaking a session here would break it.
            self._lock, self._pid, self._thread = threading.Lock(), os.getpid(), None
            self._sessions, self._next = WeakKeyDictionary(), {}
        with self._lock:
            self._sessions[session] = settings
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name="countersink-hosts", daemon=True)
                self._thread = thread
                thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(_CHECK_EVERY_S)
            with self._lock:
                sessions = list(self._sessions.items())
            self._check(sessions)
            del sessions

    def _check(self, sessions: Sequence[tuple[Waiting, Settings]]) -> None:
        late = time.monotonic() - PATIENCE_S
        found: dict[Settings, bool] = {}
        for session, settings in sessions:
            since, host = session.waiting_since, session.where
            if since is None or since > late:
                continue
            if host not in found:
                due = time.monotonic() >= self._next.get(host, 0.0)
                found[host] = due and self._has_moved(settings, session, since)
        for session, _ in sessions:
            # Also those that wait for less long: a thread that uses several would wait for each.
            if found.get(session.where):
                session.abort()
        self._next = {host: self._next[host] for host in found if host in self._next}

    def _has_moved(self, settings: Settings, session: Waiting, since: float) -> bool:
        """Whether the host of a waiting session takes no writes while another host does."""
        host = session.where
        error = self._failure(host)
        others = [each for each in settings.each_host() if each.where != host.where]
        others.sort(key=_is_silent)
        if error is None or may_take_writes(error):
            if session.address and self._is_excluded(session, others):
                _note_silence(host)  # a login to it would wait, too
                self._next.pop(host, None)
                return True
            self._next[host] = time.monotonic() + PAUSE_S
            return False
        self._next.pop(host, None)
        moved = any(self._failure(each) is None for each in others)
        return moved and session.waiting_since == since  # else the host has replied meanwhile

    def _is_excluded(self, session: Waiting, others: Sequence[Settings]) -> bool:
        """Whether the cluster has excluded the session's node, by the first other node in it."""
        found: list[bool] = []
        for host in others:
            self._failure(host, lambda opened: found.append(opened.excludes(session)))
            if found:
                return found[0]
        return False

    def _failure(
        self, host: Settings, ask: Callable[[Any], object] = lambda opened: None
    ) -> StoreError | None:
        """The error of a login to a host, or of ``ask``; None: it takes writes and answers."""
        began = time.monotonic()
        try:
            with closing(self._log_in(host)) as opened:
                began = math.inf  # a wait for the whole cluster is not the silence of this host
                ask(opened)
        except StoreError as error:
            if time.monotonic() - began > SLOW_S:
                _note_silence(host)
            return error
        except Exception as error:  # a bug: breaks no session, and does not end the watch
            LOGGER.exception("checking whether %s takes writes failed", host.where)
            return Refused(f"the check failed: {error}")
        return None
