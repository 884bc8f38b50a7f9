-- The database and its users, to be made before `countersink migrate` makes the tables. Replace the passwords and, where the
-- database has another name, `countersink`; then run it as an administrator. It may be run again:
--
--     mysql < users.sql
--
-- Afterwards, grants.sql has the rights on single tables. A process is given its user by COUNTERSINK_MYSQL_URL. Rights of
-- applications that count in their own transactions are in docs/transactions.md, those of tracked tables in docs/row-counts.md. With
-- Group Replication and a URL with several hosts each user needs SELECT ON `performance_schema`.`replication_group_members`, too.
CREATE DATABASE IF NOT EXISTS `countersink` CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;

-- countersink migrate: creates and changes tables; for the moment of an upgrade.
CREATE USER IF NOT EXISTS 'countersink_migrate'@'%' IDENTIFIED BY 'change-me-migrate';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES, CREATE VIEW, SHOW VIEW
    ON `countersink`.* TO 'countersink_migrate'@'%';

-- countersink worker: reads; what it may write is in grants.sql.
CREATE USER IF NOT EXISTS 'countersink_worker'@'%' IDENTIFIED BY 'change-me-worker';
GRANT SELECT ON `countersink`.* TO 'countersink_worker'@'%';

-- countersink scheduler, jobs, web, and an operator's commands: all rows, no tables.
CREATE USER IF NOT EXISTS 'countersink'@'%' IDENTIFIED BY 'change-me-countersink';
GRANT SELECT, INSERT, UPDATE, DELETE ON `countersink`.* TO 'countersink'@'%';

-- countersink totals, export, verify, and people with a SQL prompt: look, and change nothing.
CREATE USER IF NOT EXISTS 'countersink_reader'@'%' IDENTIFIED BY 'change-me-reader';
GRANT SELECT, SHOW VIEW ON `countersink`.* TO 'countersink_reader'@'%';
