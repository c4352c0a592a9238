"""The options that `sweep`, `load` and `compare` have in common. They load nothing: `--help` reads them too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Which of the server's models; not needed where it has one.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="Where the server's key lies: env:NAME or file:PATH.", metavar="WHERE"),
]
ApiOption = Annotated[
    str | None, typer.Option("--api", help="completions, chat or messages; without it what fits the server best.")
]
ProviderOption = Annotated[
    str | None, typer.Option(help="Whose published prices apply: openai, anthropic, ...", metavar="NAME")
]
ServerRateOption = Annotated[
    str | None, typer.Option("--machine-rate", help="What an hour of the server costs, where it is yours: 2.50/h.")
]
MaxCostOption = Annotated[
    str | None, typer.Option("--max-cost", help="Stop before more dollars than this are billed.", metavar="DOLLARS")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="Keep the result as a file, to compare it later.")]
HtmlOption = Annotated[Path | None, typer.Option("--html", help="Write a page with the plots.")]
CsvOption = Annotated[Path | None, typer.Option("--csv", help="Write every request as a line of a table.")]
