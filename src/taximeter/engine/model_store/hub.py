"""Models from a Hugging Face hub, for those who can reach one.

Owns: the form of `hf:` references and the errors of `huggingface_hub`, turned into ours. That library keeps the files
in its own cache, shared with every other program that uses it, and resumes what was interrupted. It is imported only
when a reference asks for it. Refuses to know: what is in the files.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from taximeter.errors import DownloadError, RequestError

PREFIX: Final = "hf:"

_REFERENCE: Final = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<file>[^\\]+))?", re.ASCII)
_WEIGHT_PATTERN: Final = "*.safetensors"
_FOLDER_PATTERNS: Final = (
    _WEIGHT_PATTERN,
    "model.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReference:
    """`hf:owner/repo/file`, or `hf:owner/repo` for the whole folder."""

    repo: str
    file: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises RequestError for anything else."""
        match = _REFERENCE.fullmatch(text)
        file = None if match is None else match["file"]
        if match is None or (file is not None and ".." in file.split("/")):
            raise RequestError(
                f"{text!r} names no file of a hub",
                param="model",
                hint="write hf:owner/repo/file.gguf, or hf:owner/repo for a folder of safetensors",
            )
        return cls(repo=match["repo"], file=file)

    @property
    def serving_name(self) -> str:
        """The file's name without its ending, or the repository's."""
        return Path(self.file).name.removesuffix(".gguf") if self.file else self.repo.split("/")[1]


def fetch(reference: HubReference) -> Path:
    """The file or folder, on this machine. Raises DownloadError."""
    # A second to import, and it reads its environment while it does: only when it is needed.
    import huggingface_hub as hub  # noqa: PLC0415
    from huggingface_hub import errors  # noqa: PLC0415
    from huggingface_hub.utils import disable_progress_bars, logging  # noqa: PLC0415

    logging.set_verbosity_error()  # it tells of every retry; what comes of them is told below
    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        if reference.file is not None:
            return Path(hub.hf_hub_download(reference.repo, reference.file))  # pyright: ignore[reportUnknownMemberType]
        folder = Path(
            hub.snapshot_download(reference.repo, allow_patterns=list(_FOLDER_PATTERNS))  # pyright: ignore[reportUnknownMemberType]
        )
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{reference.repo} asks its users to accept terms first",
            hint="accept them on its page, then run `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"the hub has no repository {reference.repo}, or hides it from you",
            hint="check the spelling; for a private one run `hf auth login`",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise DownloadError(
            f"{reference.repo} is not in the hub's cache on this machine, and the hub cannot be reached",
            hint="check the network and HF_ENDPOINT; a local path or `taximeter models pull` needs no hub",
        ) from error
    except errors.EntryNotFoundError as error:
        raise DownloadError(f"{reference.repo} has no file {reference.file}") from error
    except (errors.HfHubHTTPError, errors.HFValidationError, errors.OfflineModeIsEnabled, OSError) as error:
        raise DownloadError(f"{reference.repo} could not be fetched: {type(error).__name__}") from error
    if not any(folder.glob(_WEIGHT_PATTERN)):
        raise DownloadError(
            f"{reference.repo} holds no safetensors",
            hint=f"name one of its files: {PREFIX}{reference.repo}/FILE.gguf",
        )
    return folder
