-- What a counter's day is, how long it is kept, and the jobs that see to it.

-- The number of the policies in force: whoever applies entries reads it under the same lock as pruned_before.
ALTER TABLE control
    ADD COLUMN policy_version BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'grows with every change of counter or counter_policy',
    ADD COLUMN strict BOOLEAN NOT NULL DEFAULT FALSE COMMENT 'rows of counters that nobody has made are refused';

-- Days are the counter's own by now. A change of the comment alone touches no row.
ALTER TABLE counter_slot MODIFY COLUMN bucket DATETIME NOT NULL
    COMMENT 'the local midnight that begins the day, or the UTC start of the hour or quarter; its seconds: counter_policy.number';

-- Counters somebody has made by hand; all others have the defaults.
CREATE TABLE IF NOT EXISTS counter (
    name         VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    keep_days    INT UNSIGNED NULL COMMENT 'buckets of days longer ago roll up to months; NULL: never',
    app_slots    SMALLINT UNSIGNED NOT NULL DEFAULT 16 COMMENT 'slots from 256 up that the application spreads over',
    rolled_up_to DATE NULL COMMENT 'days before this one are in counter_month, or on their way there',
    created      DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (name)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- How a counter's events go into buckets, by event time. A counter without rows here counts UTC days.
CREATE TABLE IF NOT EXISTS counter_policy (
    counter    VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    number     TINYINT UNSIGNED NOT NULL COMMENT '0-59: the seconds of the buckets that were counted under it',
    valid_from DATETIME NOT NULL COMMENT 'UTC; events from this minute on, until the next one begins',
    time_zone  VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'IANA name',
    resolution VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'day, hour or quarter',
    used_to    DATETIME NULL COMMENT 'its latest bucket, once another one has taken over',
    PRIMARY KEY (counter, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- Buckets that retention rolled up, by month of the counter's own time zone.
CREATE TABLE IF NOT EXISTS counter_month (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL COMMENT 'the first day of the month, at 0:00',
    counter_key VARBINARY(255) NOT NULL COMMENT 'UTF-8, compared byte by byte',
    amount      BIGINT NOT NULL,
    PRIMARY KEY (counter, bucket, counter_key),
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
