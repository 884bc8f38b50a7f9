"""Exit statuses, and the sentence printed for an error, without passwords; what to do next is the
``advice`` of its class (``runtime/errors.py``), by MySQL error number ``_ADVICE`` in
``database/errors.py``.

::

    click.ClickException
    ├── Failure             status 1; the message says what to do next
    └── click.UsageError
        └── Misuse          status 2; the message says what is allowed
    ServerError             of a private server
    ├── ServerMissing       the program is not installed; the message is one line: what to do
    └── ServerFailed        it did not start or stop; the message ends with the end of its log

A user reads one sentence that says what to do next. ``COUNTERSINK_DEBUG=1`` adds the traceback.
Passwords are taken out of both.
"""

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Final
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
    141       whoever read stdout went away (a closed pipe)
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
    """Base of everything that `countersink.cli.servers` raises by itself."""


class ServerMissing(ServerError):
    """The server's program is not on this machine."""


class ServerFailed(ServerError):
    """The program is there, but did not do what was asked of it."""


def report(error: BaseException) -> int:
    """Say on stderr what happened, and return the exit status."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else Exit.FAILED
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return Exit.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _forget_stdout()
        return Exit.PIPE_CLOSED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        _say(error.ctx.get_help() if error.ctx else error.message)
        return Exit.USAGE
    if os.environ.get("COUNTERSINK_DEBUG") not in (None, "", "0"):
        _say("".join(traceback.format_exception(error)).rstrip())
    sentence, status = describe(error)
    if isinstance(error, OSError):
        _forget_stdout()
    _say(f"countersink: {sentence}")
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
        "run it again with COUNTERSINK_DEBUG=1 and report what it prints"
    ), Exit.FAILED


def sentence_of(error: BaseException) -> str | None:
    """The sentence for an error of ours, with what to do next; else None."""
    if not isinstance(error, ExplainedError):
        return None
    text = str(error).rstrip(".")
    advised = not error.advice or re.search("COUNTERSINK_|countersink [a-z]", text)
    return text if advised else f"{text}; {error.advice}"


@contextmanager
def values_checked() -> Iterator[None]:
    """A ValueError inside the block becomes wrong usage. One that is explained stays what it is."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, ExplainedError):
            raise
        raise Misuse(str(error)) from error


_urls: Final[set[str]] = set()


def remember_url(url: str) -> None:
    """Note a URL of this run, for :func:`scrub`."""
    _urls.add(url)


def forget_urls() -> None:
    """Know no URL any more: another run begins in this process."""
    _urls.clear()


def scrub(text: str) -> str:
    """``text`` without any password of this run, and without any in a URL."""
    text = re.sub(r"(://[^:/@\s'\"]*:)[^@\s'\"]+@", r"\1***@", text)
    text = re.sub(r"(?i)(password=)[^&\s'\"]+", r"\1***", text)
    for secret in _passwords():
        text = text.replace(secret, "***")
    return text


def _passwords() -> Iterator[str]:
    """Those in the URLs of this run, as written and unquoted."""
    for url in _urls:
        found = [url[begin:end] for begin, end in passwords(url)]
        # A very short one would blank out innocent text; its URL is caught by its form.
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


def _say(text: str) -> None:
    try:
        print(scrub(text), file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens any more


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not fail aloud."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError, AttributeError):
        return  # no file, or none any more
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
