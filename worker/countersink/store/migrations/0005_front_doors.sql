-- Who may come in by HTTP, and how many keys a day of a counter may have.

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

-- The cap on the keys of a day.
ALTER TABLE counter
    ADD COLUMN max_keys INT UNSIGNED NULL COMMENT 'keys that workers make per day; what is beyond goes to __overflow__; NULL: as control says' AFTER keep_days;

ALTER TABLE control
    ADD COLUMN max_keys INT UNSIGNED NULL COMMENT 'for counters without their own; NULL: no cap';

-- How many keys a day of a counter has that has a cap, and how much went to __overflow__, by who counted it (slot).
CREATE TABLE IF NOT EXISTS counter_keys (
    counter   VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    day       DATE NOT NULL COMMENT 'of the time zone of the counter',
    slot      SMALLINT UNSIGNED NOT NULL COMMENT '0: whoever makes keys holds this row; others: overflown only',
    number    INT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'keys of the day, or as many as it may have; right for that version',
    version   BIGINT UNSIGNED NULL COMMENT 'control.policy_version under which number was counted; NULL: it was not',
    overflown BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'rows that went to __overflow__ instead',
    PRIMARY KEY (counter, day, slot),
    KEY by_day (day)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
