-- Salts that were made late, as all workers were away, live until producers had time to use them.
ALTER TABLE visitor_salt
    ADD COLUMN made BIGINT NOT NULL DEFAULT 0 COMMENT 'Unix minutes' AFTER ends;

-- Rows say that they have a sketch, so that one that was deleted is missed.
ALTER TABLE counter_slot
    ADD COLUMN sketched TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '1: its different members are in visitor_slot';

ALTER TABLE counter_month
    ADD COLUMN sketched TINYINT UNSIGNED NOT NULL DEFAULT 0 COMMENT '1: its different members are in visitor_month';

UPDATE counter_slot JOIN visitor_slot USING (counter, bucket, counter_key, slot) SET counter_slot.sketched = 1;

UPDATE counter_month JOIN visitor_month USING (counter, bucket, counter_key) SET counter_month.sketched = 1;
