"""Measurement: ask an endpoint on purpose, see when every token comes, and say what that means.

Owns: requests that are sent to be measured, when they are sent, what was seen of each, and what is concluded from it.
Refuses to know: how anybody answers. Our own engine is measured like everybody else's, from outside.
"""
