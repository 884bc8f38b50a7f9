-- Breakdowns: a counter may have dimensions, and each combination of them that is declared is a counter of its own.
ALTER TABLE counter
    ADD COLUMN dimensions      VARCHAR(300) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'names, separated by commas; of a breakdown those it holds, in the order of its keys, NULL: it is being deleted',
    ADD COLUMN breakdown_of    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'the counter whose events it breaks down; NULL: it is no breakdown',
    ADD COLUMN since           DATETIME NULL COMMENT 'UTC; a breakdown holds the events from this minute on; NULL: all',
    ADD COLUMN last_breakdown  SMALLINT UNSIGNED NULL COMMENT 'the highest number that a breakdown of it has had; NULL: it had none';
