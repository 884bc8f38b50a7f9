"""The package ``database`` connects to MySQL and MariaDB: URLs, sessions, session pools, errors,
SQL dialects, migrations, and leases of slots.
"""

try:
    import pymysql  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "countersink.store needs PyMySQL: pip install 'countersink[server]'", name=error.name
    ) from error
