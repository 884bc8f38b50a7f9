"""The job process: takes runs from RQ's queue and does them."""
