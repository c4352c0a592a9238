"""What the files of a Hugging Face folder say about its tokenizer.

Owns: tokenizer_config.json, generation_config.json, chat_template.jinja, and the few facts that stand beside the
splitting rules in tokenizer.json. Refuses to know: how tokenizer.json splits text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taximeter.engine.weights.config import impossible
from taximeter.engine.weights.fields import Fields, read_json, read_optional_json
from taximeter.engine.weights.vocabulary import Vocabulary
from taximeter.errors import ModelFileError

_LARGEST_TEMPLATE_BYTES = 1 << 24


def vocabulary(folder: Path, config: Fields, vocab_size: int) -> Vocabulary:
    """The folder's tokenizer. `config` is its config.json; ids must lie below `vocab_size`."""
    path = folder / "tokenizer.json"
    tokenizer = read_json(path)
    about = read_optional_json(folder / "tokenizer_config.json")
    generation = read_optional_json(folder / "generation_config.json")
    ids = {added.text("content"): added.whole("id") for added in tokenizer.sections("added_tokens")}
    special = {name: _special_id(name, about, ids, generation, config) for name in ("bos", "eos", "unk")}
    stops = (special["eos"], *_numbered(generation, "eos"), *_numbered(config, "eos"))
    stop_ids = tuple(dict.fromkeys(stop for stop in stops if stop is not None))
    for token_id in (*special.values(), *stop_ids):
        if token_id is not None and token_id >= vocab_size:
            raise impossible(f"the special token {token_id} lies beyond the vocabulary of {vocab_size}")
    prepended = ids.get(_prepended(tokenizer.optional_section("post_processor")) or "")
    return Vocabulary(
        kind="json",
        bos_id=special["bos"],
        eos_id=special["eos"],
        unk_id=special["unk"],
        stop_ids=stop_ids,
        add_bos=about.flag("add_bos_token", special["bos"] is not None and prepended == special["bos"]),
        chat_template=_chat_template(folder, about),
        tokenizer_json=path,
    )


def _special_id(name: str, about: Fields, ids: Mapping[str, int], generation: Fields, config: Fields) -> int | None:
    """By its text from the tokenizer's own files, else by its number from the model's."""
    key = f"{name}_token"
    if isinstance(about.value(key), Mapping):
        section = about.optional_section(key)
        text = section.optional_text("content") if section else None
    else:
        text = about.optional_text(key)
    if text is not None and text in ids:
        return ids[text]
    return next(iter(_numbered(generation, name) or _numbered(config, name)), None)


def _numbered(fields: Fields, name: str) -> tuple[int, ...]:
    """`NAME_token_id`: one id or a list. Some files write -1 for none."""
    key = f"{name}_token_id"
    many = fields.optional_wholes(key) if isinstance(fields.value(key), list) else (fields.optional_whole(key),)
    return tuple(one for one in many or () if one is not None and one >= 0)


def _prepended(processor: Fields | None) -> str | None:
    """The special token that tokenizer.json itself puts before a text."""
    if processor is None:
        return None
    steps = processor.sections("processors") if processor.value("type") == "Sequence" else (processor,)
    for step in steps:
        for piece in step.sections("single")[:1] if step.value("type") == "TemplateProcessing" else ():
            token = piece.optional_section("SpecialToken")
            if token is not None:
                return token.optional_text("id")
    return None


def _chat_template(folder: Path, about: Fields) -> str | None:
    """A file of its own, or a text, or the one called `default` of several."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            if path.stat().st_size > _LARGEST_TEMPLATE_BYTES:
                raise ModelFileError(f"{path.name} is too large to be a chat template", hint="fetch the model again")
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{path.name} cannot be read: {error}", hint="fetch the model again") from error
    if not isinstance(about.value("chat_template"), list):
        return about.optional_text("chat_template")
    named = {entry.text("name"): entry.text("template") for entry in about.sections("chat_template")}
    return named.get("default")
