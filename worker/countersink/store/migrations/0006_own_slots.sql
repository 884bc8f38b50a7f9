-- Connections that keep to their snapshot count in slots of their own. An older program would not know that these rows
-- are not in the ledger yet, so it is not to run on these tables any more.
-- Taking back a backfill of amounts near 64 bits may have used these slots: such rows, which are in the ledger, move to
-- where they go from now on. 1062: two of one key came to one slot; `countersink compact` with the older program first.
UPDATE counter_slot SET slot = 640 + slot MOD 384 WHERE slot >= 1024;
ALTER TABLE counter_slot
    MODIFY COLUMN slot SMALLINT UNSIGNED NOT NULL COMMENT '0 compacted, 1-255 workers, 256-511 and 1024+ the application, 512+ backfill';
