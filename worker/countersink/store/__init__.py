"""MySQL: connections, dialects, migrations, applying batches, totals, dead letters."""
