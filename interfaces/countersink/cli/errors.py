"""Exit statuses of commands, and the one sentence that a command prints for an error. The sentence
says what happened, and what to do next. With ``COUNTERSINK_DEBUG=1``, the traceback is printed
before the sentence. Passwords are left out of both.

The advice what to do next is the text ``advice`` of the error's class (see ``runtime/errors.py``).
For errors of MySQL, it depends on the error number (see ``_ADVICE`` in ``database/errors.py``).

::

    click.ClickException
    ├── Failure             status 1; the message says what to do next
    │   └── NotFound        an argument names nothing that exists; also a LookupError
    └── click.UsageError
        └── Misuse          status 2; the message says what is allowed
    ServerError             a private server failed
    ├── ServerMissing       its program is not found; the message says what to install or to set
    └── ServerFailed        it did not start or stop; the message may have the end of its log
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


class NotFound(Failure, LookupError):
    """An argument names a thing that does not exist (status 1). As it is a LookupError, the message
    gets a similar name, if there is one (:func:`countersink.cli.completion.suggest`)."""


class ServerError(ExplainedError):
    """Base class of the errors of private servers, which ``countersink up`` starts
    (``countersink.cli.private_server``)."""


class ServerMissing(ServerError):
    """The program of a private server is not installed on this machine; or an environment variable,
    such as ``COUNTERSINK_REDIS_SERVER``, does not name a program."""


class ServerFailed(ServerError):
    """A private server, or a process of ``countersink up``, did not start, answer or stop."""


def report(error: BaseException, urls: Iterable[str]) -> int:
    """Print on stderr the sentence for an error that ended a command, without the passwords in
    ``urls``, and return the exit status. With ``COUNTERSINK_DEBUG=1``, print the traceback first.

    Nothing is printed if the command ended with an exit status or by Ctrl-C, or if the reader of
    stdout closed the pipe. If a group of commands was called without arguments, print only its
    help, and return 2.
    """
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
    """Return the sentence that is printed for ``error``, and the exit status. The sentence may
    contain passwords, which :func:`report` removes."""
    if isinstance(error, click.UsageError):
        return _usage(error), Exit.USAGE
    if isinstance(error, click.ClickException):
        return _one_line(_with_notes(error, error.format_message())), error.exit_code
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
    """Return the message, the notes and the advice of an :class:`ExplainedError` as one sentence;
    None for any other error. The advice is left out if the message or a note already names a
    command or an environment variable of countersink, or suggests a name."""
    if not isinstance(error, ExplainedError):
        return None
    text = _with_notes(error, str(error).rstrip("."))
    advised = not error.advice or re.search("COUNTERSINK_|countersink [a-z]|you mean", text)
    return text if advised else f"{text}; {error.advice}"


def _with_notes(error: BaseException, text: str) -> str:
    return "; ".join([text, *getattr(error, "__notes__", ())])


def scrub(text: str, urls: Iterable[str]) -> str:
    """Return ``text`` with ``***`` in place of passwords. These are the passwords in ``urls`` that
    have at least 4 characters, and those in any URL or after any ``password=`` in the text."""
    text = re.sub(r"(://[^:/@\s'\"]*:)[^@\s'\"]+@", r"\1***@", text)
    text = re.sub(r"(?i)(password=)[^&\s'\"]+", r"\1***", text)
    for secret in _passwords(urls):
        text = text.replace(secret, "***")
    return text


def _passwords(urls: Iterable[str]) -> Iterator[str]:
    """Yield the passwords in URLs, both as written and with percent-encoding decoded. Those with
    fewer than 4 characters are left out."""
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
    """Print a text on stderr, without the passwords in ``urls``. Does nothing if stderr is
    closed."""
    try:
        print(scrub(text, urls), file=sys.stderr, flush=True)
    except OSError:
        pass  # stderr is closed


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null, if stdout has a file descriptor. This is called after an
    OSError, which a write to stdout may have raised. Without it, the interpreter would flush stdout
    when it exits, fail again, and print an error."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return  # stdout is no file, or closed
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
