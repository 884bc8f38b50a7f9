"""Where a setting comes from: flag, environment, file, default."""

import json
from pathlib import Path

import pytest

from tests.cli.command import Result, call, one_sentence

ABSENT = "redis://127.0.0.1:1/0"
"""Nobody listens there: the error names the port that was tried."""


def tried(result: Result) -> str:
    """The port of the Redis that a command tried in vain."""
    assert result.status == 1, result
    return one_sentence(result).partition("127.0.0.1:")[2].partition(".")[0]


def absent(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the directory that commands run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "countersink.toml"


def test_a_flag_beats_the_environment_beats_the_file(toml: Path) -> None:
    toml.write_text(f'redis_url = "{absent(3)}"\n')
    flag = ("--redis-url", absent(1))
    variable = {"COUNTERSINK_REDIS_URL": absent(2)}
    assert tried(call("info", *flag, **variable)) == "1"
    assert tried(call("info", **variable)) == "2"
    assert tried(call("info")) == tried(call("info", COUNTERSINK_REDIS_URL="")) == "3"
    toml.unlink()
    assert call("info").status == 2


def test_a_commands_table_beats_the_top_of_the_file(toml: Path) -> None:
    toml.write_text(f'redis-url = "{absent(3)}"\n[info]\nredis-url = "{absent(4)}"\n')
    assert tried(call("info")) == "4"
    assert tried(call("increment", "c")) == "3"


def test_the_file_can_be_named_and_that_of_a_secret(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(f'redis_url = "{absent(5)}"\n')
    assert tried(call("--config", str(other), "info")) == "5"
    assert tried(call("info", COUNTERSINK_CONFIG=str(other))) == "5"
    secret = tmp_path / "redis-url"
    secret.write_text(f"{absent(6)}\n")
    assert tried(call("info", COUNTERSINK_REDIS_URL_FILE=str(secret))) == "6"


def test_every_setting_has_its_variable_and_file_and_one_offs_have_none(tmp_path: Path) -> None:
    choice = tmp_path / "format"
    choice.write_text("nonsense\n")
    for variables in (
        {"COUNTERSINK_INFO_FORMAT": "nonsense"},
        {"COUNTERSINK_INFO_FORMAT_FILE": str(choice)},
    ):
        refused = call("info", **variables)
        assert refused.status == 2
        assert "'nonsense' is not one of" in refused.err
    refused = call("totals", "c", COUNTERSINK_TOTALS_BY="nonsense")
    assert "nonsense" not in refused.err


@pytest.mark.parametrize(
    "table", ["[counter.max-keys]", "[counter]\nmax_keys.", "[counter.max_keys]"]
)
def test_a_table_is_named_as_its_command_or_as_in_python(toml: Path, table: str) -> None:
    line = "format = 'nonsense'"
    toml.write_text(f"{table}{'' if table.endswith('.') else chr(10)}{line}\n")
    refused = call("--config", str(toml), "counter", "max-keys")
    assert "'nonsense' is not one of" in one_sentence(refused, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("redis_url = ", "is not valid TOML"),
        ("redis_ulr = 'x'", "redis_ulr is not a setting; did you mean redis_url?"),
        ("[wroker]\nx = 1", "did you mean [worker]?"),
        ("worker = 1", "worker is not a setting"),
        ("redis_url = ['x']", "must be text, a number or true/false, not list"),
        ("[info]\nfromat = 'json'", "[info]: fromat is not a setting; did you mean format?"),
        ("[info]\nevery = 'often'", "'often' is not a valid float"),
        ("[info.every]\nx = 1", "must be text, a number or true/false"),
        ("[dead]\nformat = 'json'", "[dead]: format is not a setting"),
        ("[dead]\nlist = 1", "[dead]: list must be a table"),
    ],
)
def test_a_wrong_file_is_wrong_usage(toml: Path, text: str, said: str) -> None:
    toml.write_text(text)
    command = ["dead", "list"] if "dead" in text else ["info"]
    refused = call("--config", str(toml), *command, COUNTERSINK_REDIS_URL=ABSENT)
    assert said in one_sentence(refused, 2)


def test_a_secrets_file_that_cannot_be_used_is_wrong_usage(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    latin = tmp_path / "latin"
    latin.write_bytes(b"\xff")
    for path, said in (
        (tmp_path / "none", "No such file"),
        (empty, "is empty"),
        (latin, "not UTF-8"),
    ):
        assert said in one_sentence(call("info", COUNTERSINK_REDIS_URL_FILE=str(path)), 2)
    both = call("info", COUNTERSINK_REDIS_URL=ABSENT, COUNTERSINK_REDIS_URL_FILE=str(empty))
    assert "are both set" in one_sentence(both, 2)


@pytest.mark.parametrize(
    ("command", "variable"),
    [
        (["info"], "COUNTERSINK_REDIS_URL"),
        (["tail", "-", "--counter", "c"], "COUNTERSINK_REDIS_URL"),
        (["worker"], "COUNTERSINK_REDIS_URL"),
        (["verify"], "COUNTERSINK_MYSQL_URL"),
        (["sequence", "next", "a"], "COUNTERSINK_MYSQL_URL"),
        (["backfill", "-", "--counter", "c"], "COUNTERSINK_MYSQL_URL"),
        (["dead", "list"], "COUNTERSINK_MYSQL_URL"),
    ],
)
def test_a_missing_url_is_wrong_usage_that_says_what_to_set(
    command: list[str], variable: str
) -> None:
    assert variable in one_sentence(call(*command), 2)


@pytest.mark.parametrize(
    ("command", "variable", "said"),
    [
        ("info", "COUNTERSINK_REDIS_ULR", "; did you mean COUNTERSINK_REDIS_URL?"),
        ("info", "COUNTERSINK_REDIS_URL_FIEL", "; did you mean COUNTERSINK_REDIS_URL?"),
        ("info", "COUNTERSINK_INFO_FROMAT", "; did you mean COUNTERSINK_INFO_FORMAT?"),
        (
            "info",
            "COUNTERSINK_WROKER_BATCH_ROWS",
            "; did you mean COUNTERSINK_WORKER_BATCH_ROWS?",
        ),
        ("info", "COUNTERSINK_PRODUCER_SPOL", "; did you mean COUNTERSINK_PRODUCER_SPOOL?"),
        (
            "link list",
            "COUNTERSINK_LINK_LSIT_FORMAT",
            "; did you mean COUNTERSINK_LINK_LIST_FORMAT?",
        ),
        ("info", "COUNTERSINK_INFO_FROMAT_PORT", "; did you mean COUNTERSINK_INFO_FORMAT?"),
        ("info", "COUNTERSINK_FORMAT", "; did you mean COUNTERSINK_INFO_FORMAT?"),
        ("info", "COUNTERSINK_NONSENSE", ""),
        ("info", "COUNTERSINK_TOKEN", ""),  # what it shares with others is the prefix alone
    ],
)
def test_a_variable_that_nothing_reads_is_named_with_the_nearest_one(
    command: str, variable: str, said: str
) -> None:
    url = {"COUNTERSINK_REDIS_URL": ABSENT, "COUNTERSINK_MYSQL_URL": "mysql://u@127.0.0.1:1/x"}
    warning, error = call(*command.split(), **url, **{variable: "x"}).err.splitlines()
    assert warning == f"countersink: {variable} is not a setting{said}"
    assert "127.0.0.1" in error


def test_variables_of_other_commands_and_programs_are_left_alone() -> None:
    variables = {
        "COUNTERSINK_WORKER_BATCH_ROWS": "1",
        "COUNTERSINK_DEAD_LIST_FORMAT": "json",
        "COUNTERSINK_PRODUCER_SPOOL": "/spool",
        "COUNTERSINK_MYSQL_READ_URL_FILE": "/none",
        "COUNTERSINK_KEY": "x",
        "COUNTERSINKS": "x",
        "COUNTERSINK_SERVICE_HOST": "10.0.0.1",
        "COUNTERSINK_INFO_PORT_8321_TCP_ADDR": "10.0.0.1",
        "COUNTERSINK_INFO_PORT": "tcp://10.0.0.1:8321",
    }
    one_sentence(call("info", COUNTERSINK_REDIS_URL=ABSENT, COUNTERSINK_DEBUG="0", **variables), 1)


def test_a_log_of_json_stays_json() -> None:
    variables = {"COUNTERSINK_WORKER_LOG_FORMAT": "json", "COUNTERSINK_WORKER_BATHC_ROWS": "1"}
    first, _ = call("worker", **variables).err.splitlines()
    assert json.loads(first)["message"].endswith("did you mean COUNTERSINK_WORKER_BATCH_ROWS?")
