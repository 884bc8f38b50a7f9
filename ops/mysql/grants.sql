-- Users of the database, each with what its processes need and nothing more. Replace the passwords and, where the
-- database has another name, `countersink`; then run it as an administrator, once `countersink migrate` has made the tables:
--
--     mysql < grants.sql
--
-- A process is given its user by COUNTERSINK_MYSQL_URL. Rights of applications that count in their own transactions are in
-- docs/transactions.md, those of tracked tables in docs/row-counts.md. With Group Replication and a URL with several hosts each user
-- needs SELECT ON `performance_schema`.`replication_group_members`, too.

-- countersink migrate: creates and changes tables; for the moment of an upgrade.
CREATE USER 'countersink_migrate'@'%' IDENTIFIED BY 'change me: migrate';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, CREATE VIEW, SHOW VIEW
    ON `countersink`.* TO 'countersink_migrate'@'%';

-- countersink worker: counts, and sets aside what it cannot count. It deletes nothing but its lease.
CREATE USER 'countersink_worker'@'%' IDENTIFIED BY 'change me: worker';
GRANT SELECT ON `countersink`.* TO 'countersink_worker'@'%';
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

-- countersink scheduler, jobs, web, and an operator's commands: all rows, no tables.
CREATE USER 'countersink'@'%' IDENTIFIED BY 'change me: countersink';
GRANT SELECT, INSERT, UPDATE, DELETE ON `countersink`.* TO 'countersink'@'%';

-- countersink totals, export, verify, and people with a SQL prompt: look, and change nothing.
CREATE USER 'countersink_reader'@'%' IDENTIFIED BY 'change me: reader';
GRANT SELECT, SHOW VIEW ON `countersink`.* TO 'countersink_reader'@'%';
