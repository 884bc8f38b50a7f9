"""The exit statuses of every command, in one place.

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

from typing import Final

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
DIFFERS: Final = 3
INTERRUPTED: Final = 130
TERMINATED: Final = 143
PIPE_CLOSED: Final = 141
