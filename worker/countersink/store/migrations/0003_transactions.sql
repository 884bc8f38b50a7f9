-- What is counted in the application's own transactions: sequences, counters, rows of tables.

-- Sequences: one row that hands out values, in one statement.
CREATE TABLE IF NOT EXISTS sequence (
    name       VARBINARY(255) NOT NULL COMMENT 'UTF-8, compared byte by byte',
    period     DATETIME NOT NULL COMMENT 'local midnight that begins the day, month or year; 1970-01-01: all time',
    value      BIGINT NOT NULL COMMENT 'the last one handed out',
    min_value  BIGINT NULL,
    max_value  BIGINT NULL,
    updated_at DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (name, period),
    CONSTRAINT sequence_limits CHECK (value BETWEEN min_value AND max_value)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The options of every sequence that was used or configured. Whoever hands out a value holds a share lock on its row.
CREATE TABLE IF NOT EXISTS sequence_option (
    name      VARBINARY(255) NOT NULL,
    start     BIGINT NULL COMMENT 'first value of each period; NULL: the step',
    step      BIGINT NOT NULL,
    minimum   BIGINT NULL,
    maximum   BIGINT NULL,
    cycle     BOOLEAN NOT NULL COMMENT 'begin again at the end, instead of an error',
    period    VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'none, day, month or year',
    time_zone VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'IANA name; whose midnights begin the periods',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Counters that applications count in their own transactions. Each such transaction holds a share lock on the row, so
-- whoever changes what the counter's buckets are raises its version: that waits for them, and later ones see the change.
-- It is never deleted.
CREATE TABLE IF NOT EXISTS app_counter (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    version BIGINT UNSIGNED NOT NULL COMMENT 'at first control.policy_version; raised with each change of what the counter counts by',
    PRIMARY KEY (counter)
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
