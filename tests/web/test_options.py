"""The settings of the HTTP interface."""

from countersink.web.options import WebOptions


def test_no_password_is_in_repr() -> None:
    options = WebOptions(
        redis_url="redis://:s3cr3t@127.0.0.1", mysql_url="mysql://u:s3cr3t@127.0.0.1/x"
    )
    assert "s3cr3t" not in repr(options)
