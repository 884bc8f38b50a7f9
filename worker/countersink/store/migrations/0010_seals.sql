-- By which verify tells that somebody has changed a row by hand. They begin with what is there.
ALTER TABLE sequence
    ADD COLUMN handed    DECIMAL(30, 0) NULL COMMENT 'value, counted on beside it; NULL: not known',
    ADD COLUMN handed_at DATETIME(3) NULL COMMENT 'UTC; handed is right if this is updated_at: an older program writes that alone';
UPDATE sequence SET handed = value, handed_at = updated_at WHERE handed IS NULL;

ALTER TABLE counter
    ADD COLUMN seal DECIMAL(30, 0) NULL COMMENT 'checksum of its settings and policies; NULL: not known';
UPDATE counter SET seal =
    CRC32(CONCAT_WS('|', name, COALESCE(keep_days, ''), COALESCE(max_keys, ''), app_slots))
    + COALESCE((SELECT SUM(CRC32(CONCAT_WS('|', p.counter, p.number, p.valid_from, p.time_zone, p.resolution, COALESCE(p.used_to, ''))))
        FROM counter_policy AS p WHERE p.counter = counter.name), 0)
WHERE seal IS NULL;

ALTER TABLE control
    ADD COLUMN pruned_seal  BIGINT NULL COMMENT 'pruned_before, moved on beside it',
    ADD COLUMN version_seal BIGINT NULL COMMENT 'policy_version, counted on beside it';
UPDATE control SET pruned_seal = pruned_before, version_seal = policy_version WHERE pruned_seal IS NULL;
