-- By which verify tells that somebody has changed what backfills wrote down. Rows of before have none.
ALTER TABLE backfill_run      ADD COLUMN seal BIGINT NULL COMMENT 'checksum of the row but for id and seen; NULL: not known';
ALTER TABLE backfill_source   ADD COLUMN seal BIGINT NULL COMMENT 'checksum of the row but for id; NULL: not known';
ALTER TABLE backfill_chunk    ADD COLUMN seal BIGINT NULL COMMENT 'checksum of the row; NULL: not known';
ALTER TABLE backfill_journal  ADD COLUMN seal BIGINT NULL COMMENT 'checksum of the row and of the number of pieces; NULL: not known';
ALTER TABLE backfill_drift    ADD COLUMN seal BIGINT NULL COMMENT 'checksum of the row; NULL: not known';
