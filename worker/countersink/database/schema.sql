-- The tables, version 1; a later version is a file NNNN_name.sql beside this one. Each statement can be run again.
--
-- Not here: schema_version, which whoever migrates creates first.

-- The counts, one row per (counter, bucket, key, width) and slot; a counter may have rows of several widths. A slot is who wrote it: it spares writers each
-- other's locks and means nothing to a reader, who sums over all of them.
CREATE TABLE IF NOT EXISTS counter_slot (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL COMMENT 'the local midnight that begins the day or month, or the UTC start of the hour, quarter or minute',
    counter_key VARBINARY(255) NOT NULL COMMENT 'UTF-8, compared byte by byte',
    width       TINYINT UNSIGNED NOT NULL DEFAULT 4 COMMENT '1 minute, 2 quarter, 3 hour, 4 day, 5 month',
    slot        SMALLINT UNSIGNED NOT NULL COMMENT '0 compacted, 1-255 workers, 256-511 and 1024+ the application, 512+ backfill',
    amount      DECIMAL(27, 0) NOT NULL COMMENT 'signed: a slot may be decremented before it is incremented; has room for 100 million of the largest increments',
    sketched    TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '1: its different members are in visitor_slot',
    PRIMARY KEY (counter, bucket, counter_key, width, slot),
    KEY by_key (counter, counter_key, bucket)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- All that was ever counted, by slot: what the slots are checked against. Rows of buckets are compacted, these are not.
CREATE TABLE IF NOT EXISTS counter_ledger (
    counter   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    slot      SMALLINT UNSIGNED NOT NULL COMMENT 'as in counter_slot; 1024 and up: a connection of an application, whose rows are added to slot 0 later',
    amount    DECIMAL(38, 0) NOT NULL,
    checksum  DECIMAL(38, 0) NOT NULL COMMENT 'of the rows: each amount by weights of its key and of its bucket, added up; right modulo 2147483647',
    posted_at DATETIME(3) NULL COMMENT 'UTC; when an application last added to its row; NULL: it is no application''s',
    PRIMARY KEY (counter, slot)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One guard row per stream entry that was counted, in the transaction that counted it.
CREATE TABLE IF NOT EXISTS applied_entry (
    entry_id  BINARY(16) NOT NULL,
    keep_from BIGINT NOT NULL COMMENT 'Unix ms; may be pruned once control.pruned_before is above it',
    PRIMARY KEY (entry_id),
    KEY by_keep_from (keep_from)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row, read with a share lock by every transaction that applies entries.
CREATE TABLE IF NOT EXISTS control (
    id            TINYINT UNSIGNED NOT NULL,
    pruned_before BIGINT NOT NULL COMMENT 'Unix ms; guards of entries older than this may be gone. Only grows',
    catalog_version BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'grows with every change of what counters count by',
    strict        BOOLEAN NOT NULL DEFAULT FALSE COMMENT 'rows of counters that nobody has made are refused',
    max_keys      INT UNSIGNED NULL COMMENT 'for counters without their own; NULL: no cap',
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO control (id, pruned_before) VALUES (1, 0);

-- What could not be counted, with the reason.
CREATE TABLE IF NOT EXISTS dead_row (
    entry_id  BINARY(16) NOT NULL,
    position  INT NOT NULL COMMENT 'of the row in its entry from 0; -1 for the whole entry',
    stream    VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    at        BIGINT NOT NULL COMMENT 'Unix ms; first attempt to send the entry',
    reason    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    detail    VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    payload   MEDIUMBLOB NOT NULL COMMENT 'JSON: the row, or the rows of the whole entry',
    truncated BOOLEAN NOT NULL COMMENT 'the payload was too long and is cut off',
    created   DATETIME(3) NOT NULL COMMENT 'UTC',
    counter   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'whose room it takes, see dead_group',
    size      INT UNSIGNED NOT NULL COMMENT 'bytes of the payload',
    PRIMARY KEY (entry_id, position),
    KEY by_created (created),
    KEY by_reason (reason, created),
    KEY by_group (reason, counter, size)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Rows that were not kept in dead_row, as it has its most of their reason and counter. The row without a counter is
-- also the lock by which those who set rows of a reason aside take turns.
CREATE TABLE IF NOT EXISTS dead_group (
    reason   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    counter  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'empty: entries as a whole, rows without a valid counter, and those of all counters but the first 20',
    not_kept BIGINT UNSIGNED NOT NULL,
    last_at  DATETIME(3) NOT NULL COMMENT 'UTC; the last one that was not kept',
    PRIMARY KEY (reason, counter)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row: what was last seen in the streams, by which the next look tells entries that were applied from lost ones, and
-- all entries that were lost from a stream before they were applied.
CREATE TABLE IF NOT EXISTS queue_look (
    id        TINYINT UNSIGNED NOT NULL,
    version   BIGINT UNSIGNED NOT NULL COMMENT 'grows with each look: of two processes that look at once, one writes',
    looked_at BIGINT NOT NULL COMMENT 'Unix ms; 0: look again, as something is missing',
    streams   MEDIUMTEXT NOT NULL COMMENT 'JSON: by stream when, how many entries waited, and the oldest and newest',
    losses    MEDIUMTEXT NOT NULL COMMENT 'JSON: by stream and UTC day [stream, entries known to be lost, entries that waited, since when and before when they arrived in Unix ms]',
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Which process has which slot until when.
CREATE TABLE IF NOT EXISTS lease (
    name       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    holder     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    expires_at BIGINT NOT NULL COMMENT 'Unix ms, on the clock of this server',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Counters that somebody has made by hand, and time zones that stay; all others have the defaults.
CREATE TABLE IF NOT EXISTS counter (
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    time_zone    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'UTC' COMMENT 'IANA name; stays once something was counted',
    zone_fixed   DATETIME(3) NULL COMMENT 'UTC; until ten minutes after it the time zone stays, even if nothing is counted: transactions of applications may be about to',
    resolution   VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'day' COMMENT 'width of the buckets that events are counted in: minute, quarter, hour or day',
    keep_steps   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'how long buckets of each width are kept, such as minute=2d,hour=90d; NULL: for ever',
    counted_minute  DATETIME NULL COMMENT 'UTC; before it are all events that were counted in minutes while these were the resolution',
    counted_quarter DATETIME NULL COMMENT 'the same of quarters',
    counted_hour    DATETIME NULL COMMENT 'the same of hours',
    counted_day     DATETIME NULL COMMENT 'the same of days',
    rolled_quarter  DATETIME NULL COMMENT 'UTC; what was counted before it in finer buckets is in quarters, or on its way there',
    rolled_hour     DATETIME NULL COMMENT 'the same of hours',
    rolled_day      DATETIME NULL COMMENT 'the same of days',
    rolled_month    DATETIME NULL COMMENT 'the same of months',
    max_keys     INT UNSIGNED NULL COMMENT 'keys that workers make per day; what is beyond goes to __overflow__; NULL: as control says',
    app_slots    SMALLINT UNSIGNED NOT NULL DEFAULT 16 COMMENT 'slots from 256 up that the application spreads over',
    created      DATETIME(3) NULL COMMENT 'UTC; when somebody made it; NULL: nobody has, or it was deleted, and the row only keeps its time zone',
    dimensions   VARCHAR(300) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'names, separated by commas; of a breakdown those it holds, in the order of its keys, NULL: it is being deleted',
    breakdown_of VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'the counter whose events it breaks down; NULL: it is no breakdown',
    since        DATETIME NULL COMMENT 'UTC; a breakdown holds the events from this minute on; NULL: all',
    last_breakdown SMALLINT UNSIGNED NULL COMMENT 'the highest number that a breakdown of it has had; NULL: it had none',
    salt_days    SMALLINT UNSIGNED NULL COMMENT 'how many local days the salt of its members lasts; 0: for ever; NULL: its different members are not counted',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How the members of a counter's events are hashed, by event time. Workers make salts, forget them, and publish them.
CREATE TABLE IF NOT EXISTS visitor_salt (
    number  INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'is sent with the hashes',
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    begins  BIGINT NOT NULL COMMENT 'Unix minutes; -2147483648: from the beginning',
    ends    BIGINT NULL COMMENT 'Unix minutes, exclusive; NULL: for ever',
    made    BIGINT NOT NULL DEFAULT 0 COMMENT 'Unix minutes',
    salt    BINARY(16) NULL COMMENT 'NULL: forgotten, so that nobody can find out members by it',
    PRIMARY KEY (number),
    UNIQUE KEY by_counter (counter, begins)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The different members of a row of counter_slot: moved and deleted with it, and locked by whoever holds it.
CREATE TABLE IF NOT EXISTS visitor_slot (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL COMMENT 'as in counter_slot',
    counter_key VARBINARY(255) NOT NULL COMMENT 'as in counter_slot',
    width       TINYINT UNSIGNED NOT NULL DEFAULT 4 COMMENT 'as in counter_slot',
    slot        SMALLINT UNSIGNED NOT NULL COMMENT 'as in counter_slot',
    sketch      MEDIUMBLOB NOT NULL COMMENT '1 and up to 256 hashes of 8 bytes, or 2 and an HLL of Apache DataSketches',
    checksum    INT UNSIGNED NOT NULL COMMENT 'CRC-32 of the primary key and the sketch',
    PRIMARY KEY (counter, bucket, counter_key, width, slot),
    KEY by_key (counter, counter_key, bucket)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The jobs and when they run next. Written by any scheduler: who moves next_at on has planned that time.
CREATE TABLE IF NOT EXISTS job (
    name      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    cron      VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'off: not planned',
    time_zone VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'of the cron expression',
    paused    BOOLEAN NOT NULL DEFAULT FALSE COMMENT 'nothing is planned until it is resumed',
    next_at   DATETIME NULL COMMENT 'UTC; the next time to be planned; NULL: there is none, or a scheduler is to say',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Every run of a job, once. Written before the run is enqueued.
CREATE TABLE IF NOT EXISTS job_run (
    job          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    planned_at   DATETIME NOT NULL COMMENT 'UTC',
    state        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'planned, running, done, failed or skipped',
    attempts     SMALLINT UNSIGNED NOT NULL DEFAULT 0,
    holder       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'the process that runs it, or did last',
    due_at       DATETIME(3) NULL COMMENT 'UTC; one that failed is not started before; NULL: at once',
    started_at   DATETIME(3) NULL COMMENT 'UTC; the last attempt',
    heartbeat_at DATETIME(3) NULL COMMENT 'UTC; the last sign of life of a running one',
    ended_at     DATETIME(3) NULL COMMENT 'UTC',
    row_count    BIGINT NULL COMMENT 'rows it moved, deleted or looked at',
    detail       VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'what it did, or why it failed or was left out, for people',
    PRIMARY KEY (job, planned_at),
    KEY by_state (state, planned_at),
    KEY by_planned_at (planned_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Sequences. The base row of each, with the period 1970-01-01, holds its options, where NULL is the default, and the value
-- if it has no periods; whoever hands out or changes a value locks it. Each period has a row of its own.
CREATE TABLE IF NOT EXISTS sequence (
    name          VARBINARY(255) NOT NULL COMMENT 'UTF-8, compared byte by byte',
    period        DATETIME NOT NULL COMMENT 'local midnight that begins the day, month or year; 1970-01-01: the base row',
    value         BIGINT NULL COMMENT 'the last one handed out; NULL: none',
    updated_at    DATETIME(3) NULL COMMENT 'UTC; of the value',
    start         BIGINT NULL COMMENT 'first value of each period; NULL: the step',
    step          BIGINT NULL COMMENT 'NULL: 1',
    minimum       BIGINT NULL,
    maximum       BIGINT NULL,
    cycle         BOOLEAN NULL COMMENT 'begin again at the end, instead of an error',
    period_length VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'day, month or year; NULL: there are no periods',
    time_zone     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'IANA name; whose midnights begin the periods; NULL: UTC',
    PRIMARY KEY (name, period),
    KEY by_period (period)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Tables whose rows are counted by triggers.
CREATE TABLE IF NOT EXISTS tracked_table (
    counter      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    table_schema VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    table_name   VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    by_columns   JSON NOT NULL COMMENT 'array of column names, in the order in which their values make the key',
    day_column   VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'NULL: all rows on 1970-01-01',
    app_slots    SMALLINT UNSIGNED NOT NULL COMMENT 'slots from 256 up that the triggers spread over',
    triggers     VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'how the names of its triggers begin',
    created      DATETIME(3) NOT NULL COMMENT 'UTC',
    counted      DATETIME(3) NULL COMMENT 'UTC; when the rows were last counted; NULL: not yet, so the counter is not right',
    PRIMARY KEY (counter),
    KEY by_table (table_schema, table_name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per `countersink backfill`.
CREATE TABLE IF NOT EXISTS backfill_run (
    id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'add or reconcile',
    state       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'running, done, stopped, failed, undoing or undone; counts are committed while it is running only',
    options     JSON NOT NULL COMMENT 'how its sources are read',
    sources     JSON NOT NULL COMMENT 'array of names, as they were given',
    holder      VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'the process that began it',
    started     DATETIME(3) NOT NULL COMMENT 'UTC',
    seen        DATETIME(3) NOT NULL COMMENT 'UTC; the last sign of life',
    ended       DATETIME(3) NULL COMMENT 'UTC',
    size_bytes  BIGINT NOT NULL DEFAULT 0 COMMENT 'uncompressed bytes that were read',
    lines_read  BIGINT NOT NULL DEFAULT 0,
    counted     BIGINT NOT NULL DEFAULT 0 COMMENT 'lines that gave a count',
    filtered    BIGINT NOT NULL DEFAULT 0 COMMENT 'lines that the filters left out',
    rejected    BIGINT NOT NULL DEFAULT 0 COMMENT 'lines that could not be counted',
    rejects     JSON NULL COMMENT 'the first of them: array of objects with source, line, reason, text',
    amount      DECIMAL(38, 0) NOT NULL DEFAULT 0 COMMENT 'sum of what was added, or of the corrections',
    corrections BIGINT NOT NULL DEFAULT 0 COMMENT 'reconcile: (key, bucket) that differed',
    resolution  VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'reconcile: of the counter when it began, until what its sources say is forgotten',
    error       VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    PRIMARY KEY (id),
    KEY by_counter (counter, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A file, known by its content. Whoever reads on in it holds its row alone.
CREATE TABLE IF NOT EXISTS backfill_source (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    counter    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    truth_of   BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'the run that set totals to what it says; 0: it was added',
    name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '' COMMENT 'tells files of the same content apart',
    head       VARBINARY(4096) NOT NULL COMMENT 'its first bytes, as far as they were seen: by which it is found, and a shorter copy is told',
    options    JSON NOT NULL COMMENT 'how it is read',
    path       VARCHAR(4096) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'where it was last',
    read_to    BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'uncompressed bytes that are in chunks',
    lines_to   BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'lines in them',
    count_repeats TINYINT NOT NULL DEFAULT 0 COMMENT '1: lines that other sources have count, too',
    PRIMARY KEY (id),
    KEY by_head (counter, head(16))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What of a source was counted: each byte belongs to one chunk.
CREATE TABLE IF NOT EXISTS backfill_chunk (
    source     BIGINT UNSIGNED NOT NULL,
    start_at   BIGINT UNSIGNED NOT NULL COMMENT 'uncompressed bytes',
    end_at     BIGINT UNSIGNED NOT NULL,
    first_line BIGINT UNSIGNED NOT NULL COMMENT 'number of its first line, from 1',
    next_line  BIGINT UNSIGNED NOT NULL COMMENT 'number of the line behind it',
    digest     BINARY(32) NOT NULL COMMENT 'SHA-256 of its bytes',
    run        BIGINT UNSIGNED NOT NULL COMMENT 'that counted it',
    open       TINYINT NOT NULL DEFAULT 0 COMMENT '1: its last line has no newline',
    torn       TINYINT NOT NULL DEFAULT 0 COMMENT '1: and ends within quotes',
    lines_read BIGINT NOT NULL DEFAULT 0,
    counted    BIGINT NOT NULL DEFAULT 0,
    filtered   BIGINT NOT NULL DEFAULT 0,
    rejected   BIGINT NOT NULL DEFAULT 0,
    amount     DECIMAL(38, 0) NOT NULL DEFAULT 0,
    PRIMARY KEY (source, start_at),
    KEY by_run (run)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What a chunk added, so that it can be taken back.
CREATE TABLE IF NOT EXISTS backfill_journal (
    source   BIGINT UNSIGNED NOT NULL,
    start_at BIGINT UNSIGNED NOT NULL,
    piece    SMALLINT UNSIGNED NOT NULL,
    cells    MEDIUMBLOB NOT NULL COMMENT 'zlib; JSON: array of [bucket, key, amount]',
    PRIMARY KEY (source, start_at, piece)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Samples of the lines of a chunk, by which they are known again in other sources.
CREATE TABLE IF NOT EXISTS backfill_sample (
    sample   BINARY(8) NOT NULL COMMENT 'keyed hash of a line',
    source   BIGINT UNSIGNED NOT NULL,
    start_at BIGINT UNSIGNED NOT NULL COMMENT 'the chunk',
    PRIMARY KEY (sample, source, start_at),
    KEY by_chunk (source, start_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Reconcile: what the sources of a run say, in all; when it has ended, what was corrected.
CREATE TABLE IF NOT EXISTS backfill_correction (
    run         BIGINT UNSIGNED NOT NULL,
    bucket      DATETIME NOT NULL,
    width       TINYINT UNSIGNED NOT NULL,
    counter_key VARBINARY(255) NOT NULL,
    should_be   DECIMAL(38, 0) NOT NULL,
    had         DECIMAL(38, 0) NULL COMMENT 'the total before it was corrected; NULL: it was not',
    PRIMARY KEY (run, bucket, width, counter_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Local days that a source was the whole truth for: what was accepted before and comes after is in it already.
CREATE TABLE IF NOT EXISTS reconciled_day (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day         DATE NOT NULL COMMENT 'of the time zone of the counter',
    run         BIGINT UNSIGNED NOT NULL,
    sent_before BIGINT NOT NULL COMMENT 'Unix ms; entries first sent before it go to the dead letters',
    PRIMARY KEY (counter, day, run)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Keys of the HTTP interface; rows stay when a key is revoked: once there was a key, one is needed. Links, each of which
-- shows one counter until it ends; they are no keys in this.
CREATE TABLE IF NOT EXISTS api_key (
    id           VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the public part of the key',
    name         VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'for people',
    hash         BINARY(32) NOT NULL COMMENT 'SHA-256 of the secret part, which has 256 random bits',
    scopes       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'of ingest, read, admin; separated by commas; or share: a link, which shows its one counter',
    counters     JSON NOT NULL COMMENT 'array of shell patterns: the counters it is for; empty: all',
    max_counters INT UNSIGNED NULL COMMENT 'how many counters it may make; NULL: as many as the server allows',
    parent       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'of a link: the key that made it, with which it ends; empty: the command line',
    created      DATETIME(3) NOT NULL COMMENT 'UTC',
    expires      DATETIME(3) NULL COMMENT 'UTC; NULL: never',
    revoked      DATETIME(3) NULL COMMENT 'UTC',
    last_used    DATETIME(3) NULL COMMENT 'UTC; to the minute or so',
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Browsers that have logged in to the dashboard.
CREATE TABLE IF NOT EXISTS web_session (
    token_hash BINARY(32) NOT NULL COMMENT 'SHA-256 of the cookie, which has 256 random bits',
    api_key    VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the key it logged in with; the session ends with it',
    created    DATETIME(3) NOT NULL COMMENT 'UTC',
    expires    DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (token_hash),
    KEY by_expires (expires)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What people have written on days, to be shown with the numbers.
CREATE TABLE IF NOT EXISTS day_note (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'empty: all counters',
    day     DATE NOT NULL COMMENT 'of the time zone of the counter',
    note    VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    author  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'name of the key; empty: no key was needed',
    changed DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (counter, day)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How many keys were made of a day of a counter that has a cap. Whoever makes keys holds the row.
CREATE TABLE IF NOT EXISTS counter_keys (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day     DATE NOT NULL COMMENT 'of the time zone of the counter',
    made    INT UNSIGNED NULL COMMENT 'keys; only grows; NULL: to be counted first',
    PRIMARY KEY (counter, day),
    KEY by_day (day)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Which node of a Galera cluster takes countersink's writes. Empty on all other servers.
CREATE TABLE IF NOT EXISTS writer_fence (
    number   SMALLINT UNSIGNED NOT NULL COMMENT 'a transaction writes one of these rows; who changes the node writes all',
    node     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'UUID of the node in the group',
    address  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'where its clients find it; empty: not known',
    uses     BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'transactions that have written the row',
    taken_at DATETIME(3) NOT NULL COMMENT 'UTC; since when it is this node',
    PRIMARY KEY (number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- For people with a SQL prompt: one row per counter, day and key (of hours, quarters and minutes the UTC day; without
-- what is in months). counter_key is as in the table, by which an index finds a key exactly, key_text the same as text.
-- Breakdowns (visits#1) are left out: their events are in their counters already.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW counter_daily AS
SELECT counter,
       CAST(bucket AS DATE) AS day,
       counter_key,
       CONVERT(counter_key USING utf8mb4) AS key_text,
       SUM(amount) AS total
FROM counter_slot
WHERE counter NOT LIKE '%#%' AND width < 5
GROUP BY counter, CAST(bucket AS DATE), counter_key;

-- The same by hour, in UTC, as far as there are hours, quarters or minutes.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW counter_hourly AS
SELECT counter,
       bucket - INTERVAL MINUTE(bucket) MINUTE AS hour,
       counter_key,
       CONVERT(counter_key USING utf8mb4) AS key_text,
       SUM(amount) AS total
FROM counter_slot
WHERE counter NOT LIKE '%#%' AND width < 4
GROUP BY counter, bucket - INTERVAL MINUTE(bucket) MINUTE, counter_key;

-- Breakdowns: one row per counter, dimensions, day and values, which key_text has in the order of the dimensions.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW breakdown_daily AS
SELECT breakdown_of AS counter,
       dimensions,
       CAST(bucket AS DATE) AS day,
       counter_key,
       REPLACE(CONVERT(counter_key USING utf8mb4), CHAR(0 USING utf8mb4), ', ') AS key_text,
       SUM(amount) AS total
FROM counter_slot JOIN counter ON name = counter
WHERE breakdown_of IS NOT NULL AND width < 5
GROUP BY breakdown_of, dimensions, CAST(bucket AS DATE), counter_key;
