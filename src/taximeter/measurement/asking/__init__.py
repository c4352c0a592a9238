"""Whoever is asked, and every request that is: prompts of exact lengths, the wire, stamps, and the books."""
