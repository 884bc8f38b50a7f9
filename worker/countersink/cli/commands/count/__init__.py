"""The commands that count: one event, logs, StatsD, exports, rows of tables; and sequences."""
