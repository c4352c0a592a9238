"""Other people's logs as receipts: what was spent before Taximeter was there, and beside it.

Owns: finding logs, reading each kind of them, telling copies of a call apart, and pricing it as of its day. Refuses to
know: reports, and how a call is made. One module for each kind of log; `sources` lists them.

Nothing is imported here: processes that only read logs need neither a ledger nor a year of prices.
"""
