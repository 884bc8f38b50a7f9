-- Lines of sources are known again in other sources. Those that were counted before this are not.
CREATE TABLE IF NOT EXISTS backfill_sample (
    sample   BINARY(8) NOT NULL COMMENT 'keyed hash of a line',
    source   BIGINT UNSIGNED NOT NULL,
    start_at BIGINT UNSIGNED NOT NULL COMMENT 'the chunk',
    PRIMARY KEY (sample, source, start_at),
    KEY by_chunk (source, start_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

ALTER TABLE backfill_source ADD COLUMN count_repeats TINYINT NOT NULL DEFAULT 0 COMMENT '1: lines that other sources have count, too';
