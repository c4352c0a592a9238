"""`python -m taximeter` is the command `taximeter`.

A status line is asked for at every prompt, and loading the command line alone takes longer than it may. So it is
recognized here, before anything else is loaded.
"""

import atexit
import gc
import os
import sys


def main() -> None:
    """Run the command line; `statusline` without options by itself."""
    if sys.argv[1:] == ["statusline"]:
        from taximeter.cli.statusline import statusline  # noqa: PLC0415  # see above

        statusline()
        os._exit(0)  # all is said and closed: taking an interpreter apart takes longer than asking the ledger
    try:
        gc.disable()  # what is loaded stays
        from taximeter.cli.main import app  # noqa: PLC0415

        gc.enable()
        atexit.register(
            gc.freeze
        )  # nobody looks for garbage in what ends with the process: a sixth of a short command's time
        app(prog_name="taximeter")
    except KeyboardInterrupt:  # before a command has begun, which then says so itself
        sys.exit(130)


if __name__ == "__main__":
    main()
