"""The commands that check the servers and the tables, and mend what is wrong."""
