"""What a user reads when something went wrong: one sentence that says what to do next.

``COUNTERSINK_DEBUG=1`` adds the traceback. Passwords are taken out of both.
"""

import os
import sys
import traceback

import click

from countersink.cli import exits
from countersink.cli.secrets import scrub


class Failure(click.ClickException):
    """A command could not do its work (status 1); the message says what to do next."""

    exit_code = exits.FAILED


class Misuse(click.UsageError):
    """A wrong option, argument or setting (status 2); the message says what is allowed."""


def report(error: BaseException) -> int:
    """Say on stderr what happened, and return the exit status."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else exits.FAILED
    if isinstance(error, (click.Abort, KeyboardInterrupt)):
        return exits.INTERRUPTED
    if isinstance(error, BrokenPipeError):
        _forget_stdout()
        return exits.PIPE_CLOSED
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
        return _usage(error), exits.USAGE
    if isinstance(error, click.ClickException):
        return _one_line(error.format_message()), error.exit_code
    from countersink.cli.server_errors import sentence_of

    known = sentence_of(error)
    if known is not None:
        return _one_line(known), exits.FAILED
    if isinstance(error, OSError):
        name = f" {error.filename}" if error.filename else ""
        return _one_line(f"{error.strerror or error}:{name or ' ' + type(error).__name__}"), 1
    return _one_line(
        f"unexpected {type(error).__name__}: {error}; "
        "run it again with COUNTERSINK_DEBUG=1 and report what it prints"
    ), exits.FAILED


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
