"""Different visitors: sketches of members beside the rows of counters, salts, reading."""
