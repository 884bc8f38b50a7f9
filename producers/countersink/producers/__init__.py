"""What an application imports to count: the producer, its buffer and its spool."""
