"""The database's URL: its form, options, TLS, and error messages."""

import ssl
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from countersink.store.errors import Misconfigured

_OPTIONS: Final = ("ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify", "unix_socket")
_FILES: Final = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")
_YES: Final = ("1", "true", "yes", "on")
_NO: Final = ("0", "false", "no", "off")
_FORM: Final = "mysql://user:password@host:3306/database"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the database is and how to log in. ``repr`` and ``str`` show no password.

    Attributes:
        host: name or address; not used with ``unix_socket``.
        port: TCP port.
        user: the login; None for the operating system's user name.
        password: may be empty.
        database: the database that holds the tables; None where the URL names none.
        unix_socket: path of a socket to use instead of TCP.
        tls: ``prefer`` (encrypt if the server can, verify nothing: against eavesdroppers only),
            ``verify`` (encrypt, check the certificate and the host's name), ``verify_ca`` (the
            certificate only: for the ones that MySQL makes for itself), ``require`` (encrypt, check
            nothing) or ``off``.
        ssl_ca: file with the certificates to trust; None for the system's.
        ssl_cert: file with the client's certificate.
        ssl_key: file with the key for it.
    """

    host: str = "localhost"
    port: int = 3306
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
        """Read ``mysql://user:password@host:3306/database?option=value&…``, percent-encoded.

        Options: ``unix_socket`` (a path); ``ssl`` (``true``: encrypt and verify; ``false``: never
        encrypt); ``ssl_ca``, ``ssl_cert``, ``ssl_key`` (files; each of them means ``ssl=true``);
        ``ssl_verify`` (``true``, ``ca``: do not compare the host's name, ``false``: verify
        nothing).

        Raises:
            Misconfigured: says what is wrong, never with the password in it.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
            if "@" in parts.path or "@" in parts.query:
                # What stands before the @ is the rest of a login: / or ? began it too early.
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
            raise Misconfigured("the MySQL URL holds a '#': write %23 for it")
        options = dict(pairs)
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise Misconfigured(
                f"unknown option {unknown[0]!r} in the MySQL URL; known are {', '.join(_OPTIONS)}"
            )
        database = unquote(parts.path.removeprefix("/"))
        if "/" in database or "\0" in database or len(database) > 64:
            raise Misconfigured("the MySQL URL's path is not the name of a database")
        return cls(
            host=unquote(parts.hostname or "") or "localhost",
            port=port or 3306,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password or ""),
            database=database or None,
            tls=_tls(options),
            **{name: options.get(name) or None for name in _FILES},
        )

    def ssl_context(self) -> ssl.SSLContext | None:
        """What to check the server's certificate with; None for ``off`` and ``prefer``.

        Raises:
            Misconfigured: a file that the URL names cannot be read.
        """
        if self.tls in ("off", "prefer"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ssl_ca)
        except OSError as error:
            raise _unusable(error, self.ssl_ca) from error
        if self.ssl_cert is not None:
            try:
                context.load_cert_chain(self.ssl_cert, self.ssl_key)
            except OSError as error:
                raise _unusable(error, self.ssl_cert, self.ssl_key) from error
        # Python 3.13 asks for extensions that the certificates MySQL makes for itself do not have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.tls == "verify"
        context.verify_mode = ssl.CERT_NONE if self.tls == "require" else ssl.CERT_REQUIRED
        return context

    def __str__(self) -> str:
        where = self.unix_socket or f"{self.host}:{self.port}"
        return f"mysql://{self.user or ''}@{where}/{self.database or ''}"


def _unusable(error: OSError, *files: str | None) -> Misconfigured:
    named = " with ".join(file for file in files if file)
    return Misconfigured(f"the TLS file {named} of the MySQL URL cannot be used: {error}")


def _tls(options: dict[str, str]) -> str:
    wanted = options.get("ssl", "").lower()
    verify = options.get("ssl_verify", "").lower()
    files = any(options.get(name) for name in ("ssl_ca", "ssl_cert", "ssl_key"))
    if wanted not in ("", *_YES, *_NO):
        raise Misconfigured("ssl in the MySQL URL is true or false")
    if verify not in ("", "ca", *_YES, *_NO):
        raise Misconfigured("ssl_verify in the MySQL URL is true, ca or false")
    if wanted in _NO and wanted:
        if files or verify:
            raise Misconfigured("the MySQL URL says ssl=false and gives other ssl_ options")
        return "off"
    if not (wanted or files or verify):
        return "prefer"
    if verify == "ca":
        return "verify_ca"
    return "require" if verify in _NO and verify else "verify"
