"""Pictures of what was measured: described once, drawn as SVG and as characters.

Owns: charts as plain data, their axes, and both ways to draw them. Refuses to know: how anything was measured. What
stands in a picture comes as numbers and names, so that a file of somebody else's results is drawn like one's own.
"""
