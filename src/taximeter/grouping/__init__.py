"""For programs that ask through the gateway: what their requests are for, told by the code that makes them.

`context` knows the task that the running code is part of, `clients` lays it to the requests of other people's clients,
`door` is the gateway as seen from outside. Standard library only: this runs inside somebody else's program.
"""

from taximeter.grouping.clients import instrument
from taximeter.grouping.context import TaskScope, headers, task

__all__ = ["TaskScope", "headers", "instrument", "task"]
