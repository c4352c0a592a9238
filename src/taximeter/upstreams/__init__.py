"""Other people's machines: who they are, how they are reached, and which of them is asked.

`config` is what the operator says of them, `secrets` their keys, `client` the only HTTP client, `breaker` and
`dispatch` the order of tries, `switchboard` the way from a model's name to whoever serves it, `translated` an upstream
that speaks another dialect than who asks. Nothing is imported here: the client takes a while to load, and a server
without upstreams needs none.
"""
