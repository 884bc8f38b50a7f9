"""``Settings``: the address, login and TLS options that the database's URL contains, for one host
or for several.
"""

import re
import ssl
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from countersink.database.errors import Misconfigured

OFF: Final = "off://"
"""The URL that stands for no database, for an application that is only imported."""
_OPTIONS: Final = ("ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify", "unix_socket")
_FILES: Final = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")
_VERIFY: Final = {
    **dict.fromkeys(("", *_YES), "verify"),
    **dict.fromkeys(_NO, "require"),
    "ca": "verify_ca",
}
"""Value of the URL's option ``ssl_verify`` → value of ``Settings.tls``."""
_PORT: Final = 3306
_FORM: Final = "mysql://user:password@host:3306/database"
_HOSTS: Final = re.compile(
    r"(?P<before>[^:/?#]*://(?:[^/?#]*@)?)(?P<hosts>[^/?#]*)(?P<after>.*)", re.DOTALL
)
"""Splits a URL into three parts: before its list of hosts, the list, and after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The address of the database, and the login. ``repr`` and ``str`` leave out the password.

    Attributes:
        host: name or address of the URL's first host; ``localhost`` if the URL names none; not used
            with ``unix_socket``; empty for :data:`OFF`.
        port: TCP port of that host.
        others: names and ports of the URL's other hosts, in the URL's order.
        user: the user to log in as; None for the operating system's user name.
        password: the user's password; may be empty.
        database: the database that has the tables; None if the URL names none.
        unix_socket: path of a socket to use instead of TCP.
        tls: how to use TLS. ``prefer``: encrypt if the server can, and verify nothing, which helps
            against eavesdroppers only. ``verify``: encrypt, and check the server's certificate and
            the host name in it. ``verify_ca``: encrypt, and check the certificate only, for
            certificates that MySQL makes for itself. ``require``: encrypt, and check nothing.
            ``off``: do not encrypt.
        ssl_ca: file with the certificates to trust; None for those of the operating system.
        ssl_cert: file with the client's certificate; None to show none.
        ssl_key: file with the private key of the client's certificate; None if ``ssl_cert`` has it.
    """

    host: str = "localhost"
    port: int = 3306
    others: tuple[tuple[str, int], ...] = ()
    user: str | None = None
    password: str = field(default="", repr=False)
    database: str | None = None
    unix_socket: str | None = None
    tls: str = "prefer"
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None

    @classmethod
    def parse(cls, url: str) -> "Settings":
        """Read the URL ``mysql://user:password@host:3306/database?option=value&…``, whose parts are
        percent-encoded; or ``off://`` for no database. The scheme may also be ``mariadb``.

        Several hosts are separated by commas: ``h1:3306,h2:3306``. An IPv6 address is in brackets.

        The options are:

        * ``unix_socket``: the path of a socket.
        * ``ssl``: ``true`` to encrypt and verify, ``false`` to never encrypt. Without any ``ssl``
          option, :attr:`tls` is ``prefer``.
        * ``ssl_ca``, ``ssl_cert``, ``ssl_key``: files. Each of them implies ``ssl=true``.
        * ``ssl_verify``: ``true`` to check the certificate and the host name in it, ``ca`` to check
          the certificate only, ``false`` to check nothing. Each value implies ``ssl=true``.

        With ``ssl=false``, no other ``ssl_`` option may be given.

        Raises:
            Misconfigured: the URL cannot be used. The message says why, and never has the password.
        """
        if url == OFF:
            return cls(host="", database="off")
        try:
            # One URL for each host, as the parser knows no lists of hosts.
            several = [urlsplit(each) for each in _with_one_host(url)]
            ports = [each.port or _PORT for each in several]
            parts = several[0]
            strict = bool(parts.query)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=strict))
            if "@" in parts.path or "@" in parts.query:
                # A / or ? in the password has ended the login too early.
                raise ValueError
        except ValueError:
            # The parser's own message may quote a piece of the password.
            raise Misconfigured(
                f"the MySQL URL is malformed: write {_FORM},"
                " with %23 %2F %3A %3F %40 for # / : ? @ in a password"
            ) from None
        if parts.scheme not in ("mysql", "mariadb"):
            raise Misconfigured(f"not a MySQL URL: it has the form {_FORM}")
        if parts.fragment:
            raise Misconfigured("the MySQL URL has a '#': write %23 instead")
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise Misconfigured(
                f"unknown option {unknown[0]!r} in the MySQL URL; known are {', '.join(_OPTIONS)}"
            )
        database = unquote(parts.path.removeprefix("/"))
        if "/" in database or "\0" in database or len(database) > 64:
            raise Misconfigured("the path of the MySQL URL is not the name of a database")
        names = [unquote(each.hostname or "") for each in several]
        hosts = list(zip(names, ports, strict=True))
        if len(hosts) > 1:
            _check_hosts(hosts, options)
        return cls(
            host=names[0] or "localhost",
            port=ports[0],
            others=tuple(hosts[1:]),
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password or ""),
            database=database or None,
            tls=_tls(options),
            **{name: options.get(name) or None for name in _FILES},
        )

    @property
    def off(self) -> bool:
        """Whether the URL is ``off://``: there is no database, and each login raises
        Misconfigured.
        """
        return not self.host

    @property
    def where(self) -> str:
        """The first host and its port, or the path of the socket, as text for messages."""
        return self.unix_socket or _shown(self.host, self.port)

    def each_host(self) -> "list[Settings]":
        """Return one Settings for each host of the URL, in the URL's order. Each has only its host,
        and no :attr:`others`.
        """
        hosts = [(self.host, self.port), *self.others]
        return [replace(self, host=host, port=port, others=()) for host, port in hosts]

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for connections to the server; None if ``tls`` is ``off`` or
        ``prefer``.

        Raises:
            Misconfigured: a file that the URL names cannot be read or used.
        """
        if self.tls in ("off", "prefer"):
            return None
        used = self.ssl_ca or ""
        try:
            context = ssl.create_default_context(cafile=self.ssl_ca)
            if self.ssl_cert is not None:
                used = f"{self.ssl_cert} with {self.ssl_key}" if self.ssl_key else self.ssl_cert
                context.load_cert_chain(self.ssl_cert, self.ssl_key)
        except OSError as error:
            raise Misconfigured(
                f"the TLS file {used} of the MySQL URL cannot be used: {error}"
            ) from error
        # Python 3.13 requires extensions that MySQL's self-made certificates do not have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.tls == "verify"
        context.verify_mode = ssl.CERT_NONE if self.tls == "require" else ssl.CERT_REQUIRED
        return context

    def __str__(self) -> str:
        if self.off:
            return OFF
        where = ",".join((self.where, *(_shown(*other) for other in self.others)))
        return f"mysql://{self.user or ''}@{where}/{self.database or ''}"


def with_database(url: str, name: str) -> str:
    """Return ``url`` with the database ``name`` in place of the database that it names, if any.

    Raises:
        Misconfigured: the URL cannot be used.
    """
    Settings.parse(url)
    head, mark, options = url.partition("?")
    scheme, _, rest = head.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}/{quote(name, '')}{mark}{options}"


def _with_one_host(url: str) -> list[str]:
    """Return one URL for each host of ``url``, in the order of the hosts. Return only ``url``
    itself if it has no ``://``; :meth:`Settings.parse` refuses it then.
    """
    found = _HOSTS.fullmatch(url)
    if found is None:
        return [url]
    return [found["before"] + host + found["after"] for host in found["hosts"].split(",")]


def _check_hosts(hosts: list[tuple[str, int]], options: dict[str, str]) -> None:
    """Check the hosts of a URL with several hosts: names are not empty and have no spaces around
    them, no host comes twice with the same port, and the URL has no ``unix_socket``.

    Raises:
        Misconfigured: one of these does not hold.
    """
    if not all(name and name == name.strip() for name, _ in hosts):
        raise Misconfigured(
            "the MySQL URL has an empty host, or a space beside one: write host1:3306,host2:3306"
        )
    if len(set(hosts)) < len(hosts):
        raise Misconfigured("the MySQL URL names the same host twice")
    if options.get("unix_socket"):
        raise Misconfigured("the MySQL URL has a unix_socket and several hosts: give one of them")


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls(options: dict[str, str]) -> str:
    wanted = options.get("ssl", "").lower()
    verify = options.get("ssl_verify", "").lower()
    others = any(options.get(name) for name in ("ssl_ca", "ssl_cert", "ssl_key", "ssl_verify"))
    if wanted not in ("", *_YES, *_NO):
        raise Misconfigured("ssl in the MySQL URL is true or false")
    if verify not in _VERIFY:
        raise Misconfigured("ssl_verify in the MySQL URL is true, ca or false")
    if wanted in _NO:
        if others:
            raise Misconfigured("the MySQL URL says ssl=false and gives other ssl_ options")
        return "off"
    return _VERIFY[verify] if wanted or others else "prefer"
