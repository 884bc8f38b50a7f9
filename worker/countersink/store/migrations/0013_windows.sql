-- Buckets finer than days that are kept for a while: then they are added up in wider ones.
ALTER TABLE counter
    ADD COLUMN keep_steps VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL COMMENT 'how long buckets of each width are kept, such as minute=2d,hour=90d; NULL: for ever';

ALTER TABLE counter_policy
    MODIFY COLUMN resolution VARCHAR(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL COMMENT 'day, hour, quarter or minute',
    ADD COLUMN rolls     TINYINT UNSIGNED NULL COMMENT 'number of the policy whose buckets are rolled up to these; NULL: events are counted in these',
    ADD COLUMN rolled_to DATETIME NULL COMMENT 'UTC; events before it are in these buckets, or on their way there';

ALTER TABLE counter_slot
    MODIFY COLUMN bucket DATETIME NOT NULL COMMENT 'the local midnight that begins the day, or the UTC start of the hour, quarter or minute; its seconds: counter_policy.number';
