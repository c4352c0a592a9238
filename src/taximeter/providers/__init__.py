"""Wire dialects: bytes to records and records to bytes, one package for each provider's words.

Pure in both directions: no sockets, no clocks, no prices. Whoever moves the bytes lives in `gateway`.
"""
