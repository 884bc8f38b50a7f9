"""The package ``database`` connects to MySQL and MariaDB: URLs, sessions, session pools, several
hosts, Galera, replicas, errors, SQL dialects, migrations, leases of slots, and statements on
connections of the application.
"""

try:
    import pymysql  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "countersink.store needs PyMySQL: pip install 'countersink[server]'", name=error.name
    ) from error
