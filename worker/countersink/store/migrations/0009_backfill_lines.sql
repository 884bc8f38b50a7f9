-- Lines of sources are known again in other sources. Those that were counted before this are not.
CREATE TABLE IF NOT EXISTS backfill_lines (
    source       BIGINT UNSIGNED NOT NULL,
    start_at     BIGINT UNSIGNED NOT NULL COMMENT 'the chunk',
    piece        SMALLINT UNSIGNED NOT NULL,
    scope        BINARY(8) NOT NULL COMMENT 'hash of counter, truth_of and name of the source',
    first_bucket BIGINT NOT NULL COMMENT 'label of the first bucket that the chunk adds to',
    last_bucket  BIGINT NOT NULL,
    end_at       BIGINT UNSIGNED NOT NULL COMMENT 'of the chunk',
    from_start   TINYINT NOT NULL COMMENT '1: the first line is the first one of the chunk',
    to_end       TINYINT NOT NULL COMMENT '1: the last line is the last one of the chunk',
    goes_on      TINYINT NOT NULL COMMENT '1: the first line begins in the chunk before',
    run          BIGINT UNSIGNED NOT NULL COMMENT 'that counted the chunk',
    line_count   INT UNSIGNED NOT NULL,
    head         VARBINARY(64) NOT NULL COMMENT 'how marks begins',
    marks        MEDIUMBLOB NOT NULL COMMENT 'two bytes of the CRC-32 of each line',
    PRIMARY KEY (source, start_at, piece),
    KEY by_scope (scope, last_bucket, first_bucket)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS backfill_sample (
    sample   BINARY(8) NOT NULL COMMENT 'keyed hash of a line',
    source   BIGINT UNSIGNED NOT NULL,
    start_at BIGINT UNSIGNED NOT NULL COMMENT 'the chunk',
    PRIMARY KEY (sample),
    KEY by_chunk (source, start_at)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE IF NOT EXISTS backfill_left_out (
    source      BIGINT UNSIGNED NOT NULL,
    start_at    BIGINT UNSIGNED NOT NULL COMMENT 'the chunk',
    of_source   BIGINT UNSIGNED NOT NULL,
    of_start_at BIGINT UNSIGNED NOT NULL,
    of_run      BIGINT UNSIGNED NOT NULL,
    line_count  INT UNSIGNED NOT NULL,
    PRIMARY KEY (source, start_at, of_source, of_start_at),
    KEY by_run (of_run)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
