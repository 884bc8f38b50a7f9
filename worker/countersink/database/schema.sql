-- The tables, version 1; each later version is a file NNNN_name.sql beside this one. Every statement can be run again.
--
-- Not here: schema_version, which migrate.py creates first.

-- The counts, one row per (counter, bucket, key, width) and slot; a counter may have rows of several widths. Each writer has a slot, so that writers do not
-- wait for each other's locks; readers sum over all slots.
CREATE TABLE IF NOT EXISTS counter_slot (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL COMMENT 'the local midnight that begins the day or month, or the UTC start of the hour, quarter or minute',
    counter_key VARBINARY(255) NOT NULL COMMENT 'UTF-8, compared byte by byte',
    width       TINYINT UNSIGNED NOT NULL DEFAULT 4 COMMENT '1 minute, 2 quarter, 3 hour, 4 day, 5 month',
    slot        SMALLINT UNSIGNED NOT NULL COMMENT '0 compacted, 1-255 workers, 256-511 and 1024+ the application, 512+ backfill',
    amount      DECIMAL(27, 0) NOT NULL COMMENT 'signed: a slot may be decremented before it is incremented; has room for 100 million of the largest amounts',
    sketched    TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '1: the row has a sketch of its different members in visitor_slot',
    PRIMARY KEY (counter, bucket, counter_key, width, slot),
    KEY by_key (counter, counter_key, bucket)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The ledger: the sum of each bucket of a counter, by slot. Sums over all keys are read from it, and verify compares counter_slot with it.
CREATE TABLE IF NOT EXISTS counter_ledger (
    counter   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket    DATETIME NOT NULL COMMENT 'as in counter_slot; 1000-01-01, with width 0: what belongs to no bucket, whose sum over all slots is 0',
    width     TINYINT UNSIGNED NOT NULL COMMENT 'as in counter_slot',
    slot      SMALLINT UNSIGNED NOT NULL COMMENT 'as in counter_slot; from 1024 on: connections of applications, whose rows are added to slot 0 later',
    amount    DECIMAL(38, 0) NOT NULL,
    checksum  DECIMAL(38, 0) NOT NULL COMMENT 'sum over the rows of amount x square of the CRC-32 of the key; exact modulo 2147483647',
    posted_at DATETIME(3) NULL COMMENT 'UTC; time of the last posting of an application to the row; NULL: the row is of no application',
    PRIMARY KEY (counter, bucket, width, slot),
    KEY by_posted_at (posted_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The guards: one row per applied stream entry, inserted in the transaction that applied it.
CREATE TABLE IF NOT EXISTS applied_entry (
    entry_id  BINARY(16) NOT NULL,
    keep_from BIGINT NOT NULL COMMENT 'Unix ms; the guard may be pruned once control.pruned_before is above it',
    PRIMARY KEY (entry_id),
    KEY by_keep_from (keep_from)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The control row, read with a share lock by every transaction that applies entries.
CREATE TABLE IF NOT EXISTS control (
    id            TINYINT UNSIGNED NOT NULL,
    pruned_before BIGINT NOT NULL COMMENT 'Unix ms; guards of older entries may be pruned. Only grows',
    catalog_version BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'grows with every change of settings by which counters count',
    strict        BOOLEAN NOT NULL DEFAULT FALSE COMMENT 'rows of counters that were never created are refused',
    max_keys      INT UNSIGNED NULL COMMENT 'key cap of counters without a cap of their own; NULL: no cap',
    time_zone     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'UTC' COMMENT 'of counters without a row in counter, with which the row is inserted; likewise resolution and keep_steps',
    resolution    VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'day',
    keep_steps    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO control (id, pruned_before) VALUES (1, 0);

-- Dead letters: rows that cannot be counted, with the reason.
CREATE TABLE IF NOT EXISTS dead_row (
    entry_id  BINARY(16) NOT NULL,
    position  INT NOT NULL COMMENT 'index of the row in its entry, from 0; -1: the whole entry',
    stream    VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    at        BIGINT NOT NULL COMMENT 'Unix ms; time of the first attempt to send the entry',
    reason    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    detail    VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    payload   MEDIUMBLOB NOT NULL COMMENT 'JSON: the row, or the rows of the whole entry',
    truncated BOOLEAN NOT NULL COMMENT 'the payload was too long and was cut',
    created   DATETIME(3) NOT NULL COMMENT 'UTC',
    counter   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the counter whose limit it counts for, see dead_group',
    size      INT UNSIGNED NOT NULL COMMENT 'bytes of the payload',
    PRIMARY KEY (entry_id, position),
    KEY by_created (created),
    KEY by_reason (reason, created),
    KEY by_group (reason, counter, size)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Numbers of rows that were not kept in dead_row, since the maximum of their reason and counter is reached. The row with an empty counter is
-- also the lock by which transactions that write dead letters of a reason take turns.
CREATE TABLE IF NOT EXISTS dead_group (
    reason   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    counter  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'empty: whole entries, rows without a valid counter, and rows of all counters except the first 20',
    not_kept BIGINT UNSIGNED NOT NULL,
    last_at  DATETIME(3) NOT NULL COMMENT 'UTC; time of the last row that was not kept',
    PRIMARY KEY (reason, counter)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row: the state of the streams when they were last read (by which the next reading distinguishes applied entries from lost ones), and all entries that were
-- lost from a stream before they were applied.
CREATE TABLE IF NOT EXISTS queue_look (
    id        TINYINT UNSIGNED NOT NULL,
    version   BIGINT UNSIGNED NOT NULL COMMENT 'grows with each reading: of two processes that read at once, only one writes',
    looked_at BIGINT NOT NULL COMMENT 'Unix ms; 0: the state is incomplete: read again',
    streams   MEDIUMTEXT NOT NULL COMMENT 'JSON: by stream the time, the number of waiting entries, the oldest and the newest of them',
    losses    MEDIUMTEXT NOT NULL COMMENT 'JSON: by stream and UTC day [stream, entries known to be lost, entries that waited, bounds of their arrival in Unix ms]',
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Leases of slots: the holder of a slot until a time.
CREATE TABLE IF NOT EXISTS lease (
    name       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    holder     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    expires_at BIGINT NOT NULL COMMENT 'Unix ms, on the clock of this server',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Settings of counters that were created explicitly, and fixed time zones; all other counters have the defaults of control. A change
-- of the defaults inserts the rows of those counters first, so that they stay as they are.
CREATE TABLE IF NOT EXISTS counter (
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    time_zone    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'UTC' COMMENT 'IANA name; cannot change once anything was counted',
    zone_fixed   DATETIME(3) NULL COMMENT 'UTC; the time zone cannot change until ten minutes later, even if nothing is counted: a transaction of an application may be about to count',
    resolution   VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'day' COMMENT 'width of the buckets that events are counted in: minute, quarter, hour or day',
    keep_steps   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'durations for which buckets of each width are kept, such as minute=2d,hour=90d; NULL: for ever',
    counted_minute  DATETIME NULL COMMENT 'UTC; all events that were counted in minutes, while these were the resolution, are before it',
    counted_quarter DATETIME NULL COMMENT 'the same of quarters',
    counted_hour    DATETIME NULL COMMENT 'the same of hours',
    counted_day     DATETIME NULL COMMENT 'the same of days',
    rolled_quarter  DATETIME NULL COMMENT 'UTC; finer buckets before it are rolled up into quarters, or being rolled up',
    rolled_hour     DATETIME NULL COMMENT 'the same of hours',
    rolled_day      DATETIME NULL COMMENT 'the same of days',
    rolled_month    DATETIME NULL COMMENT 'the same of months',
    max_keys     INT UNSIGNED NULL COMMENT 'key cap: new keys per day; amounts of further keys go to __overflow__; NULL: that of control',
    app_slots    SMALLINT UNSIGNED NOT NULL DEFAULT 16 COMMENT 'number of slots, from 256 on, that connections of the application share',
    created      DATETIME(3) NULL COMMENT 'UTC; NULL: it was not created explicitly, or was deleted, and the row only has its time zone',
    dimensions   VARCHAR(300) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'names, separated by commas; of a breakdown: its dimensions, in the order of its keys, NULL: it is being deleted',
    breakdown_of VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'the counter whose events it breaks down; NULL: it is no breakdown',
    since        DATETIME NULL COMMENT 'UTC; a breakdown has the events from this minute on; NULL: all events',
    last_breakdown SMALLINT UNSIGNED NULL COMMENT 'the highest number of its breakdowns so far; NULL: there were none',
    salt_days    SMALLINT UNSIGNED NULL COMMENT 'local days for which the salt of its members is used; 0: for ever; NULL: its different members are not counted',
    better       VARCHAR(4) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'up' COMMENT 'whether a rise is good (up), bad (down) or neither (none)',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Salts for the hashes of a counter's members, by event time. Workers create salts, forget them, and publish them.
CREATE TABLE IF NOT EXISTS visitor_salt (
    number  INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'sent with the hashes',
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    begins  BIGINT NOT NULL COMMENT 'Unix minutes; -2147483648: from the beginning',
    ends    BIGINT NULL COMMENT 'Unix minutes, exclusive; NULL: for ever',
    made    BIGINT NOT NULL DEFAULT 0 COMMENT 'Unix minutes',
    salt    BINARY(16) NULL COMMENT 'NULL: forgotten, so that hashes cannot be traced to members',
    PRIMARY KEY (number),
    UNIQUE KEY by_counter (counter, begins)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The sketch of the different members of a row of counter_slot: moved and deleted with that row, and protected by its lock.
CREATE TABLE IF NOT EXISTS visitor_slot (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL COMMENT 'as in counter_slot',
    counter_key VARBINARY(255) NOT NULL COMMENT 'as in counter_slot',
    width       TINYINT UNSIGNED NOT NULL DEFAULT 4 COMMENT 'as in counter_slot',
    slot        SMALLINT UNSIGNED NOT NULL COMMENT 'as in counter_slot',
    sketch      MEDIUMBLOB NOT NULL COMMENT 'byte 1 and up to 256 hashes of 8 bytes, or byte 2 and an HLL of Apache DataSketches',
    checksum    INT UNSIGNED NOT NULL COMMENT 'CRC-32 of the primary key and the sketch',
    PRIMARY KEY (counter, bucket, counter_key, width, slot),
    KEY by_key (counter, counter_key, bucket)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The jobs and their next times. Any scheduler writes it: the scheduler that advances next_at has planned that run.
CREATE TABLE IF NOT EXISTS job (
    name      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    cron      VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'cron expression; off: never planned',
    time_zone VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'time zone of the cron expression',
    paused    BOOLEAN NOT NULL DEFAULT FALSE COMMENT 'no run is planned until the job is resumed',
    next_at   DATETIME NULL COMMENT 'UTC; the next time to be planned; NULL: there is none, or a scheduler has to compute it',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per run of a job, written before the run is enqueued.
CREATE TABLE IF NOT EXISTS job_run (
    job          VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    planned_at   DATETIME NOT NULL COMMENT 'UTC',
    state        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'planned, running, done, failed or skipped',
    attempts     SMALLINT UNSIGNED NOT NULL DEFAULT 0,
    holder       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'the process that runs it, or ran it last',
    due_at       DATETIME(3) NULL COMMENT 'UTC; earliest start after a failed attempt; NULL: at once',
    started_at   DATETIME(3) NULL COMMENT 'UTC; beginning of the last attempt',
    heartbeat_at DATETIME(3) NULL COMMENT 'UTC; the last heartbeat while it runs',
    ended_at     DATETIME(3) NULL COMMENT 'UTC',
    row_count    BIGINT NULL COMMENT 'rows that it moved, deleted or read',
    detail       VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'its result, or the reason why it failed or was skipped, for people',
    PRIMARY KEY (job, planned_at),
    KEY by_state (state, planned_at),
    KEY by_planned_at (planned_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Sequences. The base row of each, with the period 1970-01-01, has its options, where NULL is the default, and its value, if
-- it has no periods; every handing out and every change locks it. Each period has a further row.
CREATE TABLE IF NOT EXISTS sequence (
    name          VARBINARY(255) NOT NULL COMMENT 'UTF-8, compared byte by byte',
    period        DATETIME NOT NULL COMMENT 'local midnight that begins the day, month or year; 1970-01-01: the base row',
    value         BIGINT NULL COMMENT 'the last value handed out; NULL: none',
    updated_at    DATETIME(3) NULL COMMENT 'UTC; when the value was handed out or set',
    start         BIGINT NULL COMMENT 'first value of each period; NULL: the step',
    step          BIGINT NULL COMMENT 'NULL: 1',
    minimum       BIGINT NULL,
    maximum       BIGINT NULL,
    cycle         BOOLEAN NULL COMMENT 'begin again at the start after the last value, instead of an error',
    period_length VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'day, month or year; NULL: there are no periods',
    time_zone     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'IANA name of the zone whose midnights begin the periods; NULL: UTC',
    PRIMARY KEY (name, period),
    KEY by_period (period)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Tracked tables, whose rows triggers count.
CREATE TABLE IF NOT EXISTS tracked_table (
    counter      VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    table_schema VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    table_name   VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    by_columns   JSON NOT NULL COMMENT 'array of column names, in the order of their values in the key',
    day_column   VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL COMMENT 'NULL: all rows on 1970-01-01',
    app_slots    SMALLINT UNSIGNED NOT NULL COMMENT 'number of slots, from 256 on, that the triggers use',
    triggers     VARCHAR(40) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'beginning of the names of its triggers',
    created      DATETIME(3) NOT NULL COMMENT 'UTC',
    counted      DATETIME(3) NULL COMMENT 'UTC; time of the last count of all rows; NULL: there was none, so the counter is not right',
    PRIMARY KEY (counter),
    KEY by_table (table_schema, table_name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- One row per run of `countersink backfill`.
CREATE TABLE IF NOT EXISTS backfill_run (
    id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'add or reconcile',
    state       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'running, done, stopped, failed, undoing, undone or deleted; counts are committed only while it is running',
    options     JSON NOT NULL COMMENT 'options by which its sources are read',
    sources     JSON NOT NULL COMMENT 'array of the names of the files that were found',
    holder      VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'the process that began it',
    started     DATETIME(3) NOT NULL COMMENT 'UTC',
    seen        DATETIME(3) NOT NULL COMMENT 'UTC; the last heartbeat',
    ended       DATETIME(3) NULL COMMENT 'UTC',
    size_bytes  BIGINT NOT NULL DEFAULT 0 COMMENT 'uncompressed bytes read',
    lines_read  BIGINT NOT NULL DEFAULT 0,
    counted     BIGINT NOT NULL DEFAULT 0 COMMENT 'lines that were counted',
    filtered    BIGINT NOT NULL DEFAULT 0 COMMENT 'lines that the filters excluded',
    rejected    BIGINT NOT NULL DEFAULT 0 COMMENT 'lines that could not be counted',
    rejects     JSON NULL COMMENT 'the first rejected lines: array of objects with source, line, reason, text',
    amount      DECIMAL(38, 0) NOT NULL DEFAULT 0 COMMENT 'sum of the added amounts, or of the corrections',
    corrections BIGINT NOT NULL DEFAULT 0 COMMENT 'reconcile: number of cells that differed',
    resolution  VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'reconcile: resolution of the counter at the beginning; NULL again once the totals of its sources are deleted',
    error       VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    PRIMARY KEY (id),
    KEY by_counter (counter, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- A source of backfills, identified by its content. A run locks its row while it reads further.
CREATE TABLE IF NOT EXISTS backfill_source (
    id         BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    counter    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    truth_of   BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'the run that reconciled totals with it; 0: it was added',
    name       VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '' COMMENT 'distinguishes files with the same content',
    head       VARBINARY(4096) NOT NULL COMMENT 'its first bytes, as far as they were read, by which it, or a shorter copy, is recognized',
    options    JSON NOT NULL COMMENT 'options by which it is read',
    path       VARCHAR(4096) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'its last path',
    read_to    BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'uncompressed bytes in its chunks',
    lines_to   BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'lines in its chunks',
    count_repeats TINYINT NOT NULL DEFAULT 0 COMMENT '1: lines that other sources have, too, are counted again',
    PRIMARY KEY (id),
    KEY by_head (counter, head(16))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The counted chunks of a source: each counted byte belongs to one chunk.
CREATE TABLE IF NOT EXISTS backfill_chunk (
    source     BIGINT UNSIGNED NOT NULL,
    start_at   BIGINT UNSIGNED NOT NULL COMMENT 'uncompressed bytes',
    end_at     BIGINT UNSIGNED NOT NULL,
    first_line BIGINT UNSIGNED NOT NULL COMMENT 'number of its first line, from 1',
    next_line  BIGINT UNSIGNED NOT NULL COMMENT 'number of the first line after it',
    digest     BINARY(32) NOT NULL COMMENT 'SHA-256 of its bytes',
    run        BIGINT UNSIGNED NOT NULL COMMENT 'the run that counted it',
    open       TINYINT NOT NULL DEFAULT 0 COMMENT '1: its last line has no newline',
    torn       TINYINT NOT NULL DEFAULT 0 COMMENT '1: its last line has no newline, and ends within quotes',
    lines_read BIGINT NOT NULL DEFAULT 0,
    counted    BIGINT NOT NULL DEFAULT 0,
    filtered   BIGINT NOT NULL DEFAULT 0,
    rejected   BIGINT NOT NULL DEFAULT 0,
    amount     DECIMAL(38, 0) NOT NULL DEFAULT 0,
    PRIMARY KEY (source, start_at),
    KEY by_run (run)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The amounts that a chunk added, for undo.
CREATE TABLE IF NOT EXISTS backfill_journal (
    source   BIGINT UNSIGNED NOT NULL,
    start_at BIGINT UNSIGNED NOT NULL,
    piece    SMALLINT UNSIGNED NOT NULL,
    cells    MEDIUMBLOB NOT NULL COMMENT 'zlib; JSON: array of [bucket, key, amount], or of [bucket, key, amount, breakdown]',
    PRIMARY KEY (source, start_at, piece)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Samples of the lines of a chunk, by which the lines are recognized in other sources.
CREATE TABLE IF NOT EXISTS backfill_sample (
    sample   BINARY(8) NOT NULL COMMENT 'keyed hash of a line',
    source   BIGINT UNSIGNED NOT NULL,
    start_at BIGINT UNSIGNED NOT NULL COMMENT 'of the chunk',
    PRIMARY KEY (sample, source, start_at),
    KEY by_chunk (source, start_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Reconcile: the totals by the sources of a run; after its end only the corrected ones.
CREATE TABLE IF NOT EXISTS backfill_correction (
    run         BIGINT UNSIGNED NOT NULL,
    bucket      DATETIME NOT NULL,
    width       TINYINT UNSIGNED NOT NULL,
    counter_key VARBINARY(255) NOT NULL,
    should_be   DECIMAL(38, 0) NOT NULL,
    had         DECIMAL(38, 0) NULL COMMENT 'the total before the correction; NULL: it was not corrected',
    PRIMARY KEY (run, bucket, width, counter_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Local days that were reconciled: the sources have all events that were accepted before, also those whose entries arrive later.
CREATE TABLE IF NOT EXISTS reconciled_day (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day         DATE NOT NULL COMMENT 'of the time zone of the counter',
    run         BIGINT UNSIGNED NOT NULL,
    sent_before BIGINT NOT NULL COMMENT 'Unix ms; rows of entries that were first sent before it become dead letters',
    PRIMARY KEY (counter, day, run)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Keys of the HTTP interface: a revoked key keeps its row, since a key is required once there was one. And links, each of which
-- shows one counter until it ends; a link alone makes no key required.
CREATE TABLE IF NOT EXISTS api_key (
    id           VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the public part of the key',
    name         VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'for people',
    hash         BINARY(32) NOT NULL COMMENT 'SHA-256 of the secret part, which has 256 random bits',
    scopes       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'some of ingest, read, admin, separated by commas; or share: a link',
    counters     JSON NOT NULL COMMENT 'array of shell patterns of the counters that it may use; empty: all',
    max_counters INT UNSIGNED NULL COMMENT 'number of counters that it may create; NULL: as many as the server allows',
    parent       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'of a link: the key that created it, with which it ends; empty: the command line',
    board        VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'of a link to a board: its name; counters has its counters',
    created      DATETIME(3) NOT NULL COMMENT 'UTC',
    expires      DATETIME(3) NULL COMMENT 'UTC; NULL: never',
    revoked      DATETIME(3) NULL COMMENT 'UTC',
    last_used    DATETIME(3) NULL COMMENT 'UTC; exact to about a minute',
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Logins of browsers to the dashboard.
CREATE TABLE IF NOT EXISTS web_session (
    token_hash BINARY(32) NOT NULL COMMENT 'SHA-256 of the cookie, which has 256 random bits',
    api_key    VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'the key of the login; the login ends with it',
    created    DATETIME(3) NOT NULL COMMENT 'UTC',
    expires    DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (token_hash),
    KEY by_expires (expires)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Notes on days, which are shown with the totals.
CREATE TABLE IF NOT EXISTS day_note (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'empty: all counters',
    day     DATE NOT NULL COMMENT 'of the time zone of the counter',
    note    VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    author  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'name of the key of the author; empty: no key was required',
    changed DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (counter, day)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Boards: pages of the dashboard that show several counters.
CREATE TABLE IF NOT EXISTS board (
    name    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    items   JSON NOT NULL COMMENT 'array of its counters in their order, each with how it is shown',
    author  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'name of the key of the last change; empty: no key was required',
    changed DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Numbers of new keys of a day of a counter with a key cap. A transaction that creates keys locks the row.
CREATE TABLE IF NOT EXISTS counter_keys (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day     DATE NOT NULL COMMENT 'of the time zone of the counter',
    made    INT UNSIGNED NULL COMMENT 'number of new keys; only grows; NULL: not counted yet',
    PRIMARY KEY (counter, day),
    KEY by_day (day)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The node of a Galera cluster that takes countersink's writes. Empty on all other servers.
CREATE TABLE IF NOT EXISTS writer_fence (
    number   SMALLINT UNSIGNED NOT NULL COMMENT 'a transaction writes one of these rows; a change of the node writes all',
    node     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'UUID of the node in the group',
    address  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'its address for clients; empty: unknown',
    uses     BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'transactions that have written the row',
    taken_at DATETIME(3) NOT NULL COMMENT 'UTC; time since which it is this node',
    PRIMARY KEY (number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Totals for people with a SQL prompt: one row per counter, day and key. Hours, quarters and minutes count for their UTC day; months are excluded.
-- counter_key is the column of the table, whose index finds a key exactly; key_text is the same as text. Breakdowns (visits#1) are excluded, as their
-- counters have the same events.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW counter_daily AS
SELECT counter,
       CAST(bucket AS DATE) AS day,
       counter_key,
       CONVERT(counter_key USING utf8mb4) AS key_text,
       SUM(amount) AS total
FROM counter_slot
WHERE counter NOT LIKE '%#%' AND width < 5
GROUP BY counter, CAST(bucket AS DATE), counter_key;

-- The same by UTC hour, of hours, quarters and minutes.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW counter_hourly AS
SELECT counter,
       bucket - INTERVAL MINUTE(bucket) MINUTE AS hour,
       counter_key,
       CONVERT(counter_key USING utf8mb4) AS key_text,
       SUM(amount) AS total
FROM counter_slot
WHERE counter NOT LIKE '%#%' AND width < 4
GROUP BY counter, bucket - INTERVAL MINUTE(bucket) MINUTE, counter_key;

-- Totals of breakdowns: one row per counter, dimensions, day and values; key_text has the values in the order of the dimensions.
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
