"""Models on their way into memory, on a thread of their own.

To pack weights takes all processors and next to nothing of Python: who begins with it can import the rest of the
program meanwhile, and open a ledger. Tokenizers are built after that, which takes hardly more of it. Owns: the thread,
and the order of work on it. Refuses to know: what else an engine is made of, so that this is there long before that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

from taximeter.engine import kernels
from taximeter.engine.models import Model, WeightFormat, load_model
from taximeter.engine.weights import Checkpoint, open_checkpoint

if TYPE_CHECKING:
    from taximeter.engine.tokenizer import Tokenizer

# Between two matrices the loader needs Python for a moment, hundreds of times; by default whoever imports something
# meanwhile would keep it waiting for 5 ms each.
_TURN_S = 0.0002


class Loading:
    """One model that is being loaded, or was."""

    def __init__(self, checkpoint: Checkpoint, model: Future[Model], tokenizer: Future[Tokenizer]) -> None:
        self.checkpoint = checkpoint
        self._model = model
        self._tokenizer = tokenizer

    def model(self) -> Model:
        """Waits for it. Raises ModelFileError."""
        return self._model.result()

    def tokenizer(self) -> Tokenizer:
        """Waits for it. Raises ModelFileError."""
        return self._tokenizer.result()


class Loadings:
    """Models by the names they are served under. Close it when everything has been made of the checkpoints: their
    pages, as many as the weights have again, are of no more use then."""

    def __init__(self, by_name: Mapping[str, Loading], on_close: ExitStack) -> None:
        self.by_name = by_name
        self._on_close = on_close

    @classmethod
    def begin(
        cls,
        paths: Mapping[str, Path],
        *,
        threads: int | None = None,
        weights: WeightFormat | None = None,
        profile: bool = False,
    ) -> Self:
        """Open each file or folder, and begin to load them, one after the other. Raises ConfigError, of which
        ModelFileError is one, for what can be told at once."""
        kernels.level()  # a level that this machine does not have is told now, not by the first request
        if threads is not None:
            kernels.set_threads(threads)
        with ExitStack() as undo:
            checkpoints: dict[str, Checkpoint] = {}
            for name, path in paths.items():
                checkpoints[name] = open_checkpoint(path)
                undo.callback(checkpoints[name].close)
            loader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="taximeter-load")
            undo.callback(sys.setswitchinterval, sys.getswitchinterval())
            undo.callback(loader.shutdown, cancel_futures=True)  # nobody wants the others any more
            sys.setswitchinterval(_TURN_S)
            by_name = {
                name: Loading(
                    checkpoint,
                    loader.submit(load_model, checkpoint, weights=weights, profile=profile),
                    loader.submit(_tokenizer, checkpoint),
                )
                for name, checkpoint in checkpoints.items()
            }
            return cls(by_name, undo.pop_all())

    def close(self) -> None:
        """Let go of the files, once nothing reads them any more. Idempotent."""
        self._on_close.close()


def _tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    from taximeter.engine.tokenizer import Tokenizer  # noqa: PLC0415  # not before weights are being packed

    return Tokenizer.of(checkpoint)
