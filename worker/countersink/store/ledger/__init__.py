"""The ledger, sums and checksums of all that was added to counters, and seals of settings and
backfills.

A *posting* is three numbers: the sum of some amounts, and two checksums of the same rows. Whoever
adds, deletes or moves rows posts it in the same transaction, to ``counter_ledger``; an
application's own transaction does so to ``app_ledger``, on a row of its connection, from which a
scheduled job moves it. So for every counter, in any snapshot: the rows in slots and months, as one
posting, are equal to the sum of both ledgers.
"""
