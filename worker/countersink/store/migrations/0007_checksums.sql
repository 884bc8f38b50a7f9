-- Checksums of what was posted to the ledger, and a ledger of what applications count in their own transactions, which
-- until now came into the ledger with compaction. Both begin with what is in the tables: damage of before is not found
-- by the checksums. No worker, job or application may count meanwhile; an older program finds no place for its
-- postings any more, and stops.
ALTER TABLE counter_ledger
    ADD COLUMN checksum DECIMAL(38, 0) NULL,
    ADD COLUMN moment DECIMAL(38, 0) NULL;

CREATE TABLE IF NOT EXISTS app_ledger (
    counter  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket   DATETIME NOT NULL COMMENT 'once it is over, its rows are moved to counter_ledger',
    slot     SMALLINT UNSIGNED NOT NULL COMMENT 'of the connection: 1024 and up',
    amount   DECIMAL(38, 0) NOT NULL,
    checksum DECIMAL(38, 0) NOT NULL,
    moment   DECIMAL(38, 0) NOT NULL,
    PRIMARY KEY (counter, bucket, slot)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

INSERT IGNORE INTO counter_ledger (counter, slot, amount)
SELECT counter, 0, 0 FROM counter_ledger
UNION
SELECT counter, 0, 0 FROM counter_slot WHERE slot BETWEEN 256 AND 511 OR slot >= 1024;

-- Filled once: only rows without a checksum are, and in one statement.
UPDATE counter_ledger AS l JOIN (
    SELECT counter, SUM(outside) AS outside, SUM(checksum) AS checksum, SUM(checksum * number % 2147483647) AS moment
    FROM (
        SELECT counter, TIMESTAMPDIFF(MINUTE, '1970-01-01', bucket) DIV 15 + 1000 AS number,
               SUM(IF(slot BETWEEN 256 AND 511 OR slot >= 1024, amount, 0)) AS outside,
               CAST(SUM(amount % 2147483647 * CAST((CRC32(counter_key) * CRC32(counter_key) + 1) % 2147483647 AS SIGNED) % 2147483647
                   * CAST((CRC32(bucket) * CRC32(bucket) + 1) % 2147483647 AS SIGNED)) % 2147483647 AS SIGNED) AS checksum
        FROM counter_slot
        GROUP BY counter, bucket
        UNION ALL
        SELECT counter, 2147482647 - TIMESTAMPDIFF(MINUTE, '1970-01-01', bucket) DIV 15,
               0,
               CAST(SUM(amount % 2147483647 * CAST((CRC32(counter_key) * CRC32(counter_key) + 1) % 2147483647 AS SIGNED) % 2147483647
                   * CAST((CRC32(CONCAT('month ', bucket)) * CRC32(CONCAT('month ', bucket)) + 1) % 2147483647 AS SIGNED)) % 2147483647 AS SIGNED)
        FROM counter_month
        GROUP BY counter, bucket
    ) AS by_bucket
    GROUP BY counter
) AS rows_there ON rows_there.counter = l.counter
SET l.amount = l.amount + rows_there.outside, l.checksum = rows_there.checksum, l.moment = rows_there.moment
WHERE l.slot = 0 AND l.checksum IS NULL;

UPDATE counter_ledger SET checksum = 0, moment = 0 WHERE checksum IS NULL;

ALTER TABLE counter_ledger
    MODIFY COLUMN checksum DECIMAL(38, 0) NOT NULL COMMENT 'of the rows: each amount by weights of its key and of its bucket, added up; right modulo 2147483647',
    MODIFY COLUMN moment DECIMAL(38, 0) NOT NULL COMMENT 'the same by the number of the bucket as well: where one bucket alone is wrong, it tells which';
