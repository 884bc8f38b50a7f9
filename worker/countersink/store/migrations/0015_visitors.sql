-- Different visitors: a counter may tell how many different members it saw.
ALTER TABLE counter
    ADD COLUMN salt_days SMALLINT UNSIGNED NULL COMMENT 'how many local days the salt of its members lasts; 0: for ever; NULL: its different members are not counted';

-- How the members of a counter's events are hashed, by event time. Workers make salts, forget them, and publish them.
CREATE TABLE visitor_salt (
    number  INT UNSIGNED NOT NULL AUTO_INCREMENT COMMENT 'is sent with the hashes',
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    begins  BIGINT NOT NULL COMMENT 'Unix minutes; -2147483648: from the beginning',
    ends    BIGINT NULL COMMENT 'Unix minutes, exclusive; NULL: for ever',
    salt    BINARY(16) NULL COMMENT 'NULL: forgotten, so that nobody can find out members by it',
    PRIMARY KEY (number),
    UNIQUE KEY by_counter (counter, begins)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The different members of a row of counter_slot: moved and deleted with it, and locked by whoever holds it.
CREATE TABLE visitor_slot (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL COMMENT 'as in counter_slot',
    counter_key VARBINARY(255) NOT NULL COMMENT 'as in counter_slot',
    slot        SMALLINT UNSIGNED NOT NULL COMMENT 'as in counter_slot',
    sketch      MEDIUMBLOB NOT NULL COMMENT '1 and up to 256 hashes of 8 bytes, or 2 and an HLL of Apache DataSketches',
    checksum    INT UNSIGNED NOT NULL COMMENT 'CRC-32 of the primary key and the sketch',
    PRIMARY KEY (counter, bucket, counter_key, slot),
    KEY by_key (counter, counter_key, bucket)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- The same of a row of counter_month.
CREATE TABLE visitor_month (
    counter     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    bucket      DATETIME NOT NULL COMMENT 'as in counter_month',
    counter_key VARBINARY(255) NOT NULL COMMENT 'as in counter_month',
    sketch      MEDIUMBLOB NOT NULL COMMENT 'as in visitor_slot',
    checksum    INT UNSIGNED NOT NULL COMMENT 'CRC-32 of the primary key and the sketch',
    PRIMARY KEY (counter, bucket, counter_key),
    KEY by_key (counter, counter_key, bucket)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
