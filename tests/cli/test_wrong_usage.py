"""Wrong usage of each command: one sentence, and status 2, before any server is asked."""

import shlex

import pytest

from tests.cli.command import NOWHERE, one_sentence

REFUSED = {
    "": {
        "info --watch --format json": "leave out one of them",
        "tail access.log --counter ''": "use 1 to 64 characters",
        "top views --limit 5": "No such option '--limit'. Did you mean '--top'?",
        "totals views -n 5": "Did you mean '--top'?",
        "track": "give TABLE or --list",
        "track a.b --list": "--list takes neither TABLE",
        "track ''": "it is empty",
        "untrack": "give TABLE, COUNTER or --counter",
        "verify clicks --counter clicks": "give TABLE or --counter, not both",
    },
    "backfill access.log --counter views": {
        "--delete-missing": "--delete-missing is for --mode reconcile",
        "--grace 5": "--grace is for --mode reconcile",
        "--wait 5": "--wait is for --mode reconcile",
        "--time-zone Nowhere": "'Nowhere' is no time zone",
        "--from 2026-05-02 --to 2026-05-01": "--from 2026-05-02 is after",
        "--from May": "'May' is no day: give one such as 2026-11-21, yesterday, monday or 2026-W48",
        "--from 2026-05-02T08:00Z": "is no day",
        "--from 2026-W19 --to 2026-W18": "--from 2026-05-04 is after --to 2026-05-03",
        "--count-lines --amount-column n --input-format csv": "exclude each other",
        "--where status": "'status' is not a condition such as status=200",
        "--where status>=400 --input-format combined": "the operators of --where are = != ~ !~",
        "--input-format csv --key-column a --time-column b --time-format DD.MM.YYYY": "'%d.%m.%Y'",
        "--where colour=red --input-format combined": "no field 'colour'; they have: host, ident",
        "--key '{path'": "{path",
        "--key '{colour}' --input-format combined": "no field 'colour'",
        "--key ''": "an empty --key names no field",
        "--log-format '%h %t'": "no field 'path'",
        "--input-format csv --delimiter ab": "is not one character",
        "--input-format csv --key-column a": "give --time-column",
        "--input-format ndjson --time-column a": "give --key-column",
        "--source-name ''": "a source's name has 1 to 255 characters",
        "--rejects /": "is a directory",
        "--rate nan": "is not a finite number",
        "--key '{path}\udcff'": "'--key': it is not UTF-8",
        "--allow-rejects=x": "such as 1%",
        "--dimension page=path --key '{path}'": "the place of a key",
        "--dimension page=nothing --input-format combined": "nothing",
        "--dimension page=path --mode reconcile": "--dimension is for --mode add",
        "--visitor host,host": "give different fields, divided by commas",
        "--input-format combined --visitor host,nobody": "nobody",
        "--input-format combined --visitor host --mode reconcile": "--visitor is for --mode add",
    },
    "backfills": {
        "show 7 --rejects --drift": "not both",
        "show 7 --format csv": "--format csv is for",
    },
    "compact": {
        "--counter 'a b'": "--counter",
        "--before yesterday": "is not a day such as",
        "--share 0": "--share",
    },
    "counter": {
        "set views page country": "breakdowns",
    },
    "dead": {
        "retry": "give REF..., --reason CODE or --all",
        "retry --all --reason bad_key": "give REF",
        "retry nonsense": "names no dead row",
        "drop": "give REF..., --reason CODE or --all",
        "drop --all": "--yes",
        "drop --reason bad_key": "--yes",
    },
    "export": {
        "": "give one COUNTER or more",
        "views --all": "give one COUNTER or more",
        "views --by year": "year",
    },
    "increment": {
        "'' k": "use 1 to 64 characters",
        "c '\udcff'": "it is not UTF-8",
        "c --amount 9223372036854775808": "64-bit",
        "c --amount 1.0": "'1.0' is not a whole number",
        "c --amount " + "9" * 5000: "is not a whole number",
        "c --at 2026-11-21T08:00:00": "has no time zone",
        "c --at yesterday": "is not ISO 8601",
    },
    "increment views": {
        "/home --dimension page=/": "KEY and --dimension exclude each other",
        "--dimension page": "'page' is not NAME=VALUE",
        "--dimension Page=/": "1 to 32 characters of a-z 0-9 _",
        "--dimension day=/": "--by",
        "--dimension page=/ --dimension page=/": "twice for the same name",
    },
    "jobs": {
        "--compact-share 0": "above 0 and at most 1",
        "--wait-s nan": "seconds above 0",
    },
    "link": {
        "create page:views --expires soon": "neither a time from now",
        "revoke": "give one ID, or --all",
    },
    "partitions": {
        "set": "give a number from 1 to 1024",
        "get": "'get'",
    },
    "scheduler": {
        "--compact-cron '61 * * * *'": "bad minute",
        "--look-every-s 0": "seconds above 0",
    },
    "sequence": {
        "next a --step 0": "step",
        "next a --step 1.5": "not a whole number",
        "next a --step " + "9" * 30: "64 bits",
        "next " + "x" * 256: "255",
        "next '\udcff'": "not UTF-8",
        "set -- a -9223372036854775809": "64 bits",
        "reset": "give NAME",
        "peek a --period 2026-11": "not a day",
        "configure a --step 0": "step",
        "configure a --time-zone Mars/Olympus": "IANA",
    },
    "statsd": {
        "--host 0.0.0.0": "add --anyone",
        "--no-udp": "nothing to listen at",
        "--socket-mode 9": "octal",
        "--max-amount 0": "max_amount is 0",
        "--map /none/map.toml": "/none/map.toml: cannot be read: No such file",
    },
    "tail access.log --counter views": {
        "--log-format '%h %y %t'": "%y at character 4",
        "--log-format '%h %t' --input-format alb": "give one",
        "--dimension total=path": "--by",
    },
    "top views": {
        "--against previous --from 2026-11-20": "range with both ends",
    },
    "totals views": {
        "--all": "give one COUNTER, or --all",
        "--by year": "'year': use one of day, week, hour",
        "--by day --top 3": "the largest can be keys, counters or values of dimensions, not days",
        "--from 2026-11-21 --to 2026-11-20": "ends (2026-11-20) before",
        "--from 20261121": "is no day: give one such as 2026-11-21, yesterday",
        "--from 2026-02-30": "for month",
        "--to tomorrow": "is no day: give",
        "--time-zone Berlin": "give an IANA name such as Europe/Berlin",
        "--last 0h": "is no window",
        "--last " + "9" * 400 + "d": "is no window",
        "--last 24h --from 2026-11-20": "not both",
        "--last 24h --from yesterday": "not both",
        "--from 2025-W53": "'2025-W53' is no ISO week",
        "--to 9999-W52": "'9999-W52' is no ISO week",
        "--from yesterday --by key --against previous": "a range with both ends",
        "--from 2026-11-20T08:00": "no time zone",
        "--last 24h --by hour --against previous": "not hours",
        "--where page=/home --by key": "no keys",
        "--where page": "country=DE",
        "--by page,page": "once",
        "--by Page": "a-z",
        "--where page=a --where page=b": "once",
        "--unique --include-pending": "with increments that are still in the queue",
    },
    "web": {
        "--host ''": "--host is empty",
        "--max-items 1001": "--max-items is from 1 to 1,000",
        "--max-items 0": "--max-items is from 1 to 1,000",
        "--request-timeout-s nan": "is from 0.1 to 3,600, not nan",
        "--rate-per-key inf": "not inf",
        "--rate-per-address -1": "not -1.0",
        "--public-counter 'a b'": "'a b' matches no counter",
        "--trusted-proxy proxy.example": "--trusted-proxy is an address or a network",
        "--frame-ancestors example.com": "is not an origin, such as https://",
        "--frame-ancestors https://..": "is not an origin, such as https://",
        "--frame-ancestors https://x:99999": "is not an origin, such as https://",
        "--session-hours 0": "is from 0.01 to 8,760, not 0.0",
    },
    "worker": {
        "--batch-entries 0": "batch_entries is 0: it must be at least 1",
    },
}
CASES = [
    (f"{begin} {rest}", said) for begin, all_ in REFUSED.items() for rest, said in all_.items()
]


@pytest.mark.parametrize(("line", "said"), CASES, ids=lambda text: text[:60])
def test_wrong_usage_is_refused_in_one_sentence(line: str, said: str) -> None:
    assert said in one_sentence(NOWHERE.call(*shlex.split(line)), 2)
