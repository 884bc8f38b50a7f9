-- Links that show one counter to whoever has them, until they end.
CREATE TABLE share_link (
    id      VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'names it',
    secret  BINARY(32) NOT NULL COMMENT 'what it is signed with: HMAC-SHA256',
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'what it shows',
    api_key VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '' COMMENT 'the key that made it, with which it ends; empty: the command line',
    created DATETIME(3) NOT NULL COMMENT 'UTC',
    expires DATETIME(3) NOT NULL COMMENT 'UTC',
    revoked DATETIME(3) NULL COMMENT 'UTC',
    PRIMARY KEY (id),
    KEY by_expires (expires),
    KEY by_counter (counter)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What people have written on days, to be shown with the numbers.
CREATE TABLE day_note (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'empty: all counters',
    day     DATE NOT NULL COMMENT 'of the time zone of the counter',
    note    VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    author  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'name of the key; empty: no key was needed',
    changed DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (counter, day)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
