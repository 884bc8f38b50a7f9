-- Backfill: what was read, by which run, and how to take it back.

-- One row per `countersink backfill`.
CREATE TABLE IF NOT EXISTS backfill_run (
    id          BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    mode        VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'add, reconcile, or dry-run of a reconcile, while it lasts',
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
    amount      DECIMAL(38, 0) NOT NULL DEFAULT 0 COMMENT 'sum of what was added, or of the corrections',
    corrections BIGINT NOT NULL DEFAULT 0 COMMENT 'reconcile: (key, bucket) that differed',
    policies    JSON NULL COMMENT 'reconcile: of the counter, by which its truth was read',
    error       VARCHAR(1000) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    PRIMARY KEY (id),
    KEY by_counter (counter, id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Whoever decides which source a file is holds its counter's row alone.
CREATE TABLE IF NOT EXISTS backfill_counter (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (counter)
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
    open_at    BIGINT UNSIGNED NULL COMMENT 'where its last line begins, if it had no newline yet',
    PRIMARY KEY (id),
    KEY by_head (counter, head(16))
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What of a source was counted, or is to be: each byte belongs to one chunk.
CREATE TABLE IF NOT EXISTS backfill_chunk (
    source     BIGINT UNSIGNED NOT NULL,
    start_at   BIGINT UNSIGNED NOT NULL COMMENT 'uncompressed bytes',
    end_at     BIGINT UNSIGNED NOT NULL,
    reads_from BIGINT UNSIGNED NOT NULL COMMENT 'before start_at where the line before was counted without its end',
    first_line BIGINT UNSIGNED NOT NULL COMMENT 'number of its first line, from 1',
    digest     BINARY(32) NOT NULL COMMENT 'SHA-256 of its bytes',
    state      VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'pending, done or undone',
    run        BIGINT UNSIGNED NOT NULL COMMENT 'that planned it; when done: that counted it',
    open_rejected TINYINT NOT NULL DEFAULT 0 COMMENT '1: its last line had no newline, and was rejected for the total that it would have made',
    lines_read BIGINT NOT NULL DEFAULT 0,
    counted    BIGINT NOT NULL DEFAULT 0,
    filtered   BIGINT NOT NULL DEFAULT 0,
    rejected   BIGINT NOT NULL DEFAULT 0,
    amount     DECIMAL(38, 0) NOT NULL DEFAULT 0,
    PRIMARY KEY (source, start_at),
    KEY by_run (run, state)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What a chunk added, so that it can be taken back.
CREATE TABLE IF NOT EXISTS backfill_journal (
    source   BIGINT UNSIGNED NOT NULL,
    start_at BIGINT UNSIGNED NOT NULL,
    piece    SMALLINT UNSIGNED NOT NULL,
    cells    MEDIUMBLOB NOT NULL COMMENT 'zlib; JSON: array of [bucket, key, amount]',
    PRIMARY KEY (source, start_at, piece)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Lines that could not be counted.
CREATE TABLE IF NOT EXISTS backfill_reject (
    source   BIGINT UNSIGNED NOT NULL,
    start_at BIGINT UNSIGNED NOT NULL COMMENT 'the chunk',
    line     BIGINT UNSIGNED NOT NULL COMMENT 'from 1',
    run      BIGINT UNSIGNED NOT NULL,
    reason   VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    text     VARBINARY(1000) NOT NULL COMMENT 'how the line begins',
    PRIMARY KEY (source, start_at, line),
    KEY by_run (run)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Reconcile: what the sources of a run say, in all.
CREATE TABLE IF NOT EXISTS backfill_truth (
    run         BIGINT UNSIGNED NOT NULL,
    bucket      DATETIME NOT NULL,
    counter_key VARBINARY(255) NOT NULL,
    amount      DECIMAL(38, 0) NOT NULL,
    PRIMARY KEY (run, bucket, counter_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Reconcile: what was corrected.
CREATE TABLE IF NOT EXISTS backfill_drift (
    run         BIGINT UNSIGNED NOT NULL,
    bucket      DATETIME NOT NULL,
    counter_key VARBINARY(255) NOT NULL,
    had         DECIMAL(38, 0) NOT NULL,
    should_be   DECIMAL(38, 0) NOT NULL,
    PRIMARY KEY (run, bucket, counter_key)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Buckets that a source was the whole truth for: what was accepted before and comes after is in it already.
CREATE TABLE IF NOT EXISTS reconciled_bucket (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL,
    run         BIGINT UNSIGNED NOT NULL,
    sent_before BIGINT NOT NULL COMMENT 'Unix ms; entries first sent before it go to the dead letters',
    PRIMARY KEY (counter, bucket, run)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
