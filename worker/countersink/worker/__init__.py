"""The consumer loop: Redis streams into MySQL, every entry exactly once."""
