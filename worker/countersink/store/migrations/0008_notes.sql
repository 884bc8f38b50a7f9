-- What people have written on days, to be shown with the numbers.
CREATE TABLE day_note (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'empty: all counters',
    day     DATE NOT NULL COMMENT 'of the time zone of the counter',
    note    VARCHAR(500) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    author  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'name of the key; empty: no key was needed',
    changed DATETIME(3) NOT NULL COMMENT 'UTC',
    PRIMARY KEY (counter, day)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
