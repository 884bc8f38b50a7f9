"""Exit statuses, and the one sentence that is printed for an error: what happened, and what to do
next. ``COUNTERSINK_DEBUG=1`` prints the traceback as well. Both are printed without passwords.

The advice is the ``advice`` of the error's class (see ``runtime/errors.py``), or depends on the
MySQL error number (see ``_ADVICE`` in ``database/errors.py``).

::

    click.ClickException
    ├── Failure             status 1; the message says what to do next
    └── click.UsageError
        └── Misuse          status 2; the message says what is allowed
    ServerError             of a private server
    ├── ServerMissing       the program is not installed; the message says what to install
    └── ServerFailed        it did not start or stop; the message ends with the end of its log
"""

import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from enum import IntEnum
from urllib.parse import unquote, unquote_plus

import click

from countersink.runtime.errors import ExplainedError
from countersink.runtime.log import passwords


class Exit(IntEnum):
    """The exit statuses of every command.

    ========  ==========================================================================
    status    meaning
    ========  ==========================================================================
    0         done
    1         failed; the one sentence on stderr says what to do next
    2         wrong usage: an option, an argument or a setting
    3         done, but something was rejected or differs
    130, 143  ended by Ctrl-C (SIGINT) or by SIGTERM
    141       the reader of stdout closed the pipe
    ========  ==========================================================================
    """

    DONE = 0
    FAILED = 1
    USAGE = 2
    DIFFERS = 3
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


class Failure(click.ClickException):
    """A command could not do its work (status 1); the message says what to do next."""

    exit_code = Exit.FAILED


class Misuse(click.UsageError):
    """A wrong option, argument or setting (status 2); the message says what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, click.get_current_context(silent=True))


class ServerError(ExplainedError):
    """Base class of the errors of private servers (``countersink.cli.servers``)."""


class ServerMissing(ServerError):
    """The server's program is not installed on this machine."""


class ServerFailed(ServerError):
    """The server's program did not start, answer or stop."""


def report(error: BaseException, urls: Iterable[str]) -> int:
    """Print an error on stderr without the passwords of ``urls``, and return the exit status."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else Exit.FAILED
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return Exit.PIPE_CLOSED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        _print(error.ctx.get_help() if error.ctx else error.message, urls)
        return Exit.USAGE
    if os.environ.get("COUNTERSINK_DEBUG") not in (None, "", "0"):
        _print("".join(traceback.format_exception(error)).rstrip(), urls)
    sentence, status = describe(error)
    if isinstance(error, OSError):
        _discard_stdout()
    _print(f"countersink: {sentence}", urls)
    return status


def describe(error: BaseException) -> tuple[str, int]:
    """The sentence for ``error``, and the exit status."""
    if isinstance(error, click.UsageError):
        return _usage(error), Exit.USAGE
    if isinstance(error, click.ClickException):
        return _one_line(error.format_message()), error.exit_code
    known = sentence_of(error)
    if known is not None:
        return _one_line(known), Exit.FAILED
    if isinstance(error, OSError):
        name = error.filename or type(error).__name__
        return _one_line(f"{error.strerror or error}: {name}"), Exit.FAILED
    return _one_line(
        f"unexpected {type(error).__name__}: {error}; "
        "run it again with COUNTERSINK_DEBUG=1 and report the traceback"
    ), Exit.FAILED


def sentence_of(error: BaseException) -> str | None:
    """The sentence for an error of countersink, with its advice; None for other errors."""
    if not isinstance(error, ExplainedError):
        return None
    text = str(error).rstrip(".")
    advised = not error.advice or re.search("COUNTERSINK_|countersink [a-z]", text)
    return text if advised else f"{text}; {error.advice}"


def scrub(text: str, urls: Iterable[str]) -> str:
    """``text`` with ``***`` for passwords: those of ``urls``, and of URLs in the text."""
    text = re.sub(r"(://[^:/@\s'\"]*:)[^@\s'\"]+@", r"\1***@", text)
    text = re.sub(r"(?i)(password=)[^&\s'\"]+", r"\1***", text)
    for secret in _passwords(urls):
        text = text.replace(secret, "***")
    return text


def _passwords(urls: Iterable[str]) -> Iterator[str]:
    """Passwords in URLs, as written and unquoted."""
    for url in urls:
        found = [url[begin:end] for begin, end in passwords(url)]
        # A very short password would remove other text, too; in a URL, its form gives it away.
        yield from (
            secret
            for secret in {*found, *map(unquote, found), *map(unquote_plus, found)}
            if len(secret) >= 4
        )


def _usage(error: click.UsageError) -> str:
    message = _one_line(error.format_message())
    if error.ctx is None:
        return message
    if not message.endswith((".", "?", "!")):
        message += "."
    return f"{message} See {error.ctx.command_path} --help"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _print(text: str, urls: Iterable[str]) -> None:
    """Print a text on stderr, without passwords."""
    try:
        print(scrub(text, urls), file=sys.stderr, flush=True)
    except OSError:
        pass  # stderr is closed


def _discard_stdout() -> None:
    """Point stdout at /dev/null, so that the interpreter's last flush prints no error."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return  # stdout is no file, or closed
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
