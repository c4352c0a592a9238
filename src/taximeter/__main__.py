"""`python -m taximeter` is the command `taximeter`."""

from taximeter.cli.main import app

if __name__ == "__main__":
    app(prog_name="taximeter")
