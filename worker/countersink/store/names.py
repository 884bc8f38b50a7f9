"""Names in SQL: an identifier cannot be bound, so here it becomes one."""


def quoted(name: str) -> str:
    """A name as an SQL identifier: in backquotes, with every backquote within doubled."""
    return f"`{name.replace('`', '``')}`"
