"""The choice of the host that takes writes, where the URL has several hosts. This module finds out
why a host takes no writes (read only, Group Replication), and decides in which order hosts are
asked (``SILENT_S``). It also breaks sessions to a host that hangs (``PATIENCE_S``). See
``galera.py`` for nodes of Galera.
"""

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
"""Seconds after which a host whose login fails counts as silent."""
SILENT_S: Final = 60.0
"""Seconds for which this process asks a silent host only after all others."""
PATIENCE_S: Final = 2.0
"""Seconds that a session waits for a reply before its host is checked."""
PROBE_S: Final = 2.0
"""Seconds that a host has for each reply while it is checked."""
_CHECK_EVERY_S: Final = 0.5
PAUSE_S: Final = 2.0
"""Seconds between two checks of a host that takes writes while sessions wait for it. A long
statement shall not cause two logins each second."""
LIMITS: Final = frozenset({1040, 1203, 1226})
"""Errors for too many connections, of all users or of this user. The server itself works."""

LOGGER: Final = logging.getLogger("countersink.database")
Opened = TypeVar("Opened")
Ask = Callable[[str], Sequence[tuple[Any, ...]]]
"""A function that runs a query and returns its rows."""

READ_ONLY: Final = ("super_read_only", "read_only", "innodb_read_only")
"""Server variables. A server takes no writes while any of them is on."""
GALERA: Final = ("wsrep_on", "wsrep_provider")
"""Server variables that tell whether the server is a node of Galera."""
VARIABLES: Final = (*READ_ONLY, *GROUP)
"""Server variables whose values :func:`why_read_only` gets. A server may lack some of them."""
_MEMBERS: Final = (
    "SELECT member_id = @@server_uuid, member_state, member_role"
    " FROM performance_schema.replication_group_members"
)

_silent: Final[dict[str, float]] = {}
"""Address of a host → time on the monotonic clock until which the host is asked last."""


def why_read_only(variables: Mapping[str, str], ask: Ask) -> str:
    """Return the reason why countersink must not write to a server: it takes no writes, or its
    group has several primaries. Return an empty text if it may.

    Args:
        variables: the values of the server's variables :data:`VARIABLES`.
        ask: a function that runs a query on the server. It is called at most once, and only if the
            server has the settings of a replication group and is not read-only.
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
    """Call ``log_in`` for the hosts in the URL's order, and return its result for the first host
    that takes writes. Hosts that were silent lately come last.

    If no host takes writes, ``log_in`` is called once more for each host that raised OtherWriter,
    with that error as ``former``, until one call succeeds. There is no second call if the writer
    works and only refused this login.

    Args:
        settings: the settings of a URL with several hosts.
        log_in: logs in to the host whose settings it gets. It raises Unavailable if the host takes
            no writes, and OtherWriter if another node of the host's cluster takes them.

    Raises:
        Unavailable: no host takes writes. The message has the reason of each host.
        Refused: each host refuses the login, and none raises OtherWriter.
        Misconfigured, SchemaMismatch: as raised by ``log_in``; the other hosts are not asked then.
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
    """Return whether the writer works although the login to it failed, with a connection limit or a
    refusal. Then it may serve other clients.

    If the writer's address is not in the URL, any host whose login failed in this way may be the
    writer. So return whether there is such a host.

    Args:
        writer: address of the writer.
        errors: address of a host → error of the login to the host.
    """
    suspects = [errors[writer]] if writer in errors else list(errors.values())
    return any(not isinstance(each, OtherWriter) and may_take_writes(each) for each in suspects)


def may_take_writes(error: StoreError) -> bool:
    """Return whether a host whose login raised ``error`` may take writes of other clients. It may
    if the error is a connection limit or a refusal, because the server itself works then.
    """
    return error.code in LIMITS or isinstance(error, Refused)


def _is_silent(host: Settings) -> bool:
    return time.monotonic() < _silent.get(host.where, 0.0)


def _note_silence(host: Settings) -> None:
    _silent[host.where] = time.monotonic() + SILENT_S


def reason(error: StoreError) -> str:
    """Return in a few words why a host could not be used."""
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
    """A session that :class:`Watch`, which looks for hosts that hang, can break.

    Attributes:
        where: the host that the session is connected to.
        waiting_since: time on the monotonic clock since which the session has been waiting for a
            reply; None while it does not wait.
        address: the host's address within its Galera cluster; empty if it is in no cluster.
    """

    where: Settings
    waiting_since: float | None
    address: str

    def abort(self) -> None:
        """Break the connection. Any thread may call this."""


class Watch:
    """Breaks the sessions to a host that hangs, if another host takes writes.

    A session waits long for a reply if its server is frozen, if its server lost its group during a
    COMMIT, or if a long statement runs. So once a session has waited for ``PATIENCE_S`` (2 s), a
    thread logs in to the host anew, and asks whether the host still takes writes. If it does not,
    the thread asks the other hosts. If one of them takes writes, the thread breaks all sessions to
    the host that hangs.

    On Galera, the thread asks the other nodes whether they have excluded the host: after a freeze,
    a node says for some seconds that it takes writes, although it is excluded.

    After a session was broken, it is unknown whether its statement took effect, as after any lost
    connection.

    Args:
        log_in: opens a session on one host, and raises as the ``log_in`` of :func:`first_writable`.
            The watch closes that session again.
    """

    def __init__(self, log_in: Callable[[Settings], Any]) -> None:
        self._log_in = log_in
        self._lock = threading.Lock()
        self._sessions: WeakKeyDictionary[Waiting, Settings] = WeakKeyDictionary()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._next: dict[Settings, float] = {}
        """A host that takes writes, though sessions wait for it → time of the host's next check, on
        the monotonic clock."""

    def add(self, session: Waiting, settings: Settings) -> None:
        """Watch a session until it is garbage-collected.

        Args:
            session: a session on one host of the URL.
            settings: the settings of the URL, with all its hosts.
        """
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
        """Return whether the sessions to a host must be broken: the host takes no writes any more
        and another host does, or the other nodes of its Galera cluster have excluded it.

        Args:
            settings: the settings of the URL, with all its hosts.
            session: a session on the host that is checked.
            since: the session's ``waiting_since`` before this check. If it changes during the
                check, the host has answered, and only an exclusion by the cluster counts.
        """
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
        """Return whether the Galera cluster has excluded the session's node. The first of the other
        hosts that takes writes and answers decides; without such a host, return False.
        """
        found: list[bool] = []
        for host in others:
            self._failure(host, lambda opened: found.append(opened.excludes(session)))
            if found:
                return found[0]
        return False

    def _failure(
        self, host: Settings, ask: Callable[[Any], object] = lambda opened: None
    ) -> StoreError | None:
        """Log in to a host and call ``ask`` with the new session. Return the error of the login or
        of ``ask``. Return None if there was no error; then the host takes writes, as ``log_in``
        checks this. A host whose login fails slowly is noted as silent.
        """
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
