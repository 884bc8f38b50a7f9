-- What `countersink worker` may write: it counts, and sets aside what it cannot count. It deletes nothing but its lease. Run it as an
-- administrator, after users.sql and once `countersink migrate` has made the tables:
--
--     mysql < grants.sql
GRANT INSERT, UPDATE ON `countersink`.`counter_slot` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE ON `countersink`.`counter_ledger` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE ON `countersink`.`counter_keys` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE ON `countersink`.`visitor_slot` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE ON `countersink`.`visitor_salt` TO 'countersink_worker'@'%';
GRANT INSERT ON `countersink`.`applied_entry` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE ON `countersink`.`dead_row` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE ON `countersink`.`dead_group` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE ON `countersink`.`queue_look` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE, DELETE ON `countersink`.`lease` TO 'countersink_worker'@'%';
GRANT INSERT, UPDATE ON `countersink`.`writer_fence` TO 'countersink_worker'@'%'; -- used on Galera only
