"""Several beside each other: what may be ranked, ratios, and curves per dollar."""
