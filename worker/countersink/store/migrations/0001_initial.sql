-- The queue's counts, one row per (counter, bucket, key) and slot. A slot is who wrote it: it spares writers each
-- other's locks and means nothing to a reader, who sums over all of them.
CREATE TABLE IF NOT EXISTS counter_slot (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL COMMENT 'UTC; the midnight that begins the day',
    counter_key VARBINARY(255) NOT NULL COMMENT 'UTF-8, compared byte by byte',
    slot        SMALLINT UNSIGNED NOT NULL COMMENT '0 compacted, 1-255 workers, 256-511 the application, 512+ backfill',
    amount      BIGINT NOT NULL COMMENT 'signed: a slot may be decremented before it is incremented',
    PRIMARY KEY (counter, bucket, counter_key, slot),
    KEY by_key (counter, counter_key, bucket)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- All that was ever applied to a counter, by slot. Never compacted: the slot rows are checked against it.
CREATE TABLE IF NOT EXISTS counter_ledger (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    slot    SMALLINT UNSIGNED NOT NULL,
    amount  DECIMAL(38, 0) NOT NULL,
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

-- What was last seen in the streams, by which the next look tells entries that were applied from lost ones.
CREATE TABLE IF NOT EXISTS queue_look (
    id        TINYINT UNSIGNED NOT NULL,
    version   BIGINT UNSIGNED NOT NULL COMMENT 'grows with each look: of two processes that look at once, one writes',
    looked_at BIGINT NOT NULL COMMENT 'Unix ms; 0: look again, as something is missing',
    streams   MEDIUMTEXT NOT NULL COMMENT 'JSON: by stream when, how many entries waited, and the oldest and newest',
    PRIMARY KEY (id)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Entries that were lost from a stream before they were applied: a row per stream and UTC day.
CREATE TABLE IF NOT EXISTS queue_loss (
    stream     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    day        DATE NOT NULL COMMENT 'UTC; when it was noticed',
    entries    BIGINT UNSIGNED NOT NULL COMMENT 'known to be lost, at least; 0: none is known',
    waited     BIGINT UNSIGNED NOT NULL COMMENT 'in the stream at the looks before',
    since      BIGINT NOT NULL COMMENT 'Unix ms; when the first of them arrived, or of the look before',
    noticed_at BIGINT NOT NULL COMMENT 'Unix ms; they arrived before it',
    PRIMARY KEY (stream, day),
    KEY by_noticed_at (noticed_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Who may do what until when. The token grows with every change of hands and is never reset.
CREATE TABLE IF NOT EXISTS lease (
    name       VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    holder     VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    token      BIGINT UNSIGNED NOT NULL,
    expires_at BIGINT NOT NULL COMMENT 'Unix ms, on the clock of this server',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- For people with a SQL prompt: one row per counter, day and key (of counters that go by hour or quarter the UTC day;
-- without what is in counter_month). The key stays as it is in the table: converted
-- to text it would be compared by a collation, in which '/Home' equals '/home', and no index could find it.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW counter_daily AS
SELECT counter,
       CAST(bucket AS DATE) AS day,
       counter_key,
       SUM(amount) AS total
FROM counter_slot
GROUP BY counter, CAST(bucket AS DATE), counter_key;
