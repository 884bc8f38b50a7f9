-- Which node of a Galera cluster takes countersink's writes. Empty on all other servers.
CREATE TABLE IF NOT EXISTS writer_fence (
    number   SMALLINT UNSIGNED NOT NULL COMMENT 'a transaction writes one of these rows; who changes the node writes all',
    node     VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'UUID of the node in the group',
    address  VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL COMMENT 'where its clients find it; empty: not known',
    uses     BIGINT UNSIGNED NOT NULL DEFAULT 0 COMMENT 'transactions that have written the row',
    taken_at DATETIME(3) NOT NULL COMMENT 'UTC; since when it is this node',
    PRIMARY KEY (number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- What transactions of applications write on Galera, so that none that goes by a counter's former settings is committed on another node.
CREATE TABLE IF NOT EXISTS app_fence (
    counter VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    number  SMALLINT UNSIGNED NOT NULL COMMENT 'a transaction writes one of the counter''s rows; who changes its settings writes all',
    uses    BIGINT UNSIGNED NOT NULL COMMENT 'transactions that have written the row',
    PRIMARY KEY (counter, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
