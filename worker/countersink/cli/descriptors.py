"""Standard input, output and error that the caller has closed."""

import os
import sys


def occupy() -> None:
    """See to it that the descriptors 0 to 2 are taken.

    The next file or connection that is opened would get the number of one that was closed
    (``countersink totals c >&-``): it would be read, or written to, as if it were that one. What is
    printed to one that was closed goes nowhere; reading from it fails.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is given: this one.
            os.open(os.devnull, os.O_WRONLY)
            os.set_inheritable(number, True)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
