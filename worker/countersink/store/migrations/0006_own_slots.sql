-- Connections that keep to their snapshot count in slots of their own. An older program would not know that these rows
-- are not in the ledger yet, so it is not to run on these tables any more.
ALTER TABLE counter_slot
    MODIFY COLUMN slot SMALLINT UNSIGNED NOT NULL COMMENT '0 compacted, 1-255 workers, 256-511 and 1024+ the application, 512+ backfill';
