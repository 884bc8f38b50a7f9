"""Mistakes in the core that tests have to notice: `python -m tests.mutations [NAME…]`.

Each mutation of the repertoire is made in a copy of the checkout, and the tests that should catch
it are run there. It is caught when one of them fails. Before that, all these tests have to pass on
the code as it is. One line per mutation as its tests end; at the end those that no test has caught,
and then the exit status is 1. A mutation whose old text does not occur exactly once in its file is
an error: whoever changes the code there changes the mutation with it.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tests.mutations.copies import SourceCopy
from tests.mutations.mutation import Mutation, MutationError, problems
from tests.mutations.repertoire import repertoire
from tests.mutations.runs import TIME_OUT_S, Outcome, run_mutated, run_unmutated, without_repeats
from tests.support.processes import PROJECT

JOBS = 2
SHOWN_BYTES = 4000
"""Of the output of tests that say nothing of a mutation."""


def main() -> int:
    """Make mutations and run their tests; 0 when all were caught."""
    options = _arguments()
    try:
        chosen = select(options.names)
        if options.list:
            for each in chosen:
                print(f"{each.name}\n    {each.file}: {', '.join(each.tests)}")
            return 0
        if wrong := problems(repertoire(), PROJECT):
            raise MutationError("\n".join(wrong))
        return _play(chosen, options.jobs, options.time_out)
    except MutationError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def select(names: Sequence[str]) -> list[Mutation]:
    """The mutations with these names, which may be patterns (`guard*`); all of them for none.

    Raises:
        MutationError: a name is of none.
    """
    for name in names:
        if not any(fnmatchcase(each.name, name) for each in repertoire()):
            raise MutationError(f"no mutation is called {name}: --list names all of them")
    wanted = names or ["*"]
    return [each for each in repertoire() if any(fnmatchcase(each.name, name) for name in wanted)]


def _play(chosen: Sequence[Mutation], jobs: int, time_out_s: float) -> int:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="csm-") as parent:
        first = SourceCopy.of_checkout(Path(parent) / "0")
        tests = without_repeats(test for each in chosen for test in each.tests)
        print(f"mutations: {len(chosen)}; first their tests without any", flush=True)
        status, output = run_unmutated(first, tests, jobs)
        said = output.strip().rpartition("\n")[2]
        print(f"without a mutation: {said or 'pytest says nothing'}", flush=True)
        if status:
            print(output[-SHOWN_BYTES:])
            raise MutationError("the tests fail without any mutation, so they would tell nothing")
        copies = [first, *(first.again(Path(parent) / str(at)) for at in range(1, jobs))]
        outcomes = run_mutated(copies, chosen, _tell, time_out_s=time_out_s)
    missed = [each for each in outcomes if not each.caught]
    print(
        f"{len(outcomes)} mutations, {len(outcomes) - len(missed)} caught,"
        f" {time.monotonic() - begun:.0f} s"
    )
    for each in missed:
        print(f"{each.fate}: {each.mutation.name} ({each.mutation.file})")
    return 1 if missed else 0


def _tell(outcome: Outcome) -> None:
    print(outcome, flush=True)
    if outcome.fate == "not told":
        print(outcome.output[-SHOWN_BYTES:], flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these only; may be a pattern")
    parser.add_argument("--list", action="store_true", help="names, files and tests, and no run")
    parser.add_argument("--jobs", type=int, default=JOBS, help="copies at a time")
    parser.add_argument(
        "--time-out", type=float, default=TIME_OUT_S, help="seconds for the tests of a mutation"
    )
    return parser.parse_args()


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    # As tests do: children of a shell's background jobs would ignore it for ever.
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGTERM, _interrupted)
    sys.exit(main())
