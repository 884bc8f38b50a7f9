-- Salts that were made late, as all workers were away, live until producers had time to use them.
ALTER TABLE visitor_salt
    ADD COLUMN made BIGINT NOT NULL DEFAULT 0 COMMENT 'Unix minutes' AFTER ends;
