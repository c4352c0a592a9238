"""Answers of a prescribed form: at every step, which tokens may come.

Owns: what `llguidance` needs to know of a model's vocabulary (built once for each model, when the first form is asked
for), compiling a form, and following one answer through it. Refuses to know: which token is picked, tools, requests.

Every token that is allowed keeps the way to a whole answer open, and nothing else is changed: a form takes choices
away from the model and gives it none.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from taximeter.engine.tokenizer import Tokenizer
from taximeter.errors import RequestError
from taximeter.records import FinishReason, Form, FormKind, Json

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_log = logging.getLogger(__name__)

_MOST_GRAMMAR_CHARACTERS = 1 << 17
_MOST_MESSAGE_CHARACTERS = 300
# What a form may cost, in the library's units: some 50,000 are a millisecond of compiling, 14,000 one of a step.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 40_000,
    "step_max_items": 20_000,
    "max_grammar_size": 100_000,
}
# Between the parts of a JSON text: nothing, a space, or a line break and an indentation. Left to themselves, small
# models go on with white space for ever.
_JSON_STYLE: dict[str, Json] = {"whitespace_pattern": r"( |\n( {0,24}|\t{0,8}))?"}


def json_rule(schema: Json, *, lenient: bool = False) -> str:
    """A JSON schema with our style, as text. What the schema says itself under `x-guidance` comes first. `lenient`
    follows it as far as it can be followed, instead of refusing what cannot."""
    if not isinstance(schema, dict):
        return json.dumps(schema)
    style = _JSON_STYLE | ({"lenient": True} if lenient else {})
    own = schema.get("x-guidance")
    return json.dumps(
        {**schema, "x-guidance": own if own is not None and not isinstance(own, dict) else style | (own or {})}
    )


def schema_rule(form: Form) -> str:
    """The JSON schema that a form is, as a rule. Raises RequestError when it is not even JSON."""
    _refuse_long(form)
    try:
        return json_rule(json.loads(form.text))
    except (ValueError, RecursionError) as error:
        raise _cannot_follow(form.field, str(error)) from error


def schema_grammar(rule: str) -> str:
    """The grammar of what keeps to a rule."""
    from llguidance import grammar_from  # noqa: PLC0415  # see form_grammar

    return grammar_from("json_schema", rule)


def form_grammar(form: Form) -> str:
    """A form in the library's own words. Raises RequestError for one that is not even that."""
    if form.kind is FormKind.JSON_SCHEMA:
        return schema_grammar(schema_rule(form))
    from llguidance import grammar_from  # noqa: PLC0415  # takes a tenth of a second, and few requests have a form

    _refuse_long(form)
    try:
        return grammar_from(form.kind.value, form.text)
    except Exception as error:  # its reader of GBNF raises anything
        raise _cannot_follow(form.field, str(error)) from error


def _refuse_long(form: Form) -> None:
    if len(form.text) > _MOST_GRAMMAR_CHARACTERS:
        raise RequestError(
            f"`{form.field}` has {len(form.text):,} characters; {_MOST_GRAMMAR_CHARACTERS:,} is the most",
            param=form.field,
        )


class Matcher:
    """Follows one answer through its form. `allowed` is which tokens may come next; there always is one."""

    def __init__(self, inner: LLMatcher, *, logits: int, stops: npt.NDArray[np.uint32]) -> None:
        """`stops` is the mask of the tokens that end an answer, and says how long masks are."""
        self._inner = inner
        self._logits = logits
        self._stops = stops
        self._mask = np.zeros_like(stops)
        inner.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)

    def copy(self) -> Self:
        """One that goes on from here by itself."""
        return type(self)(self._inner.deep_copy(), logits=self._logits, stops=self._stops)

    @property
    def error(self) -> str:
        """What went wrong, in the library's words; empty when nothing did."""
        return self._inner.get_error()

    @property
    def can_go_on(self) -> bool:
        """Whether any token may come but one that ends the answer."""
        return not self._inner.is_error() and bool((self._mask & ~self._stops).any())

    def error_after(self, token_id: int) -> str:
        """What goes wrong with this token as the next one, which it then is."""
        self._inner.consume_token(token_id)
        self._inner.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        return self.error

    def allowed(self) -> npt.NDArray[np.bool_]:
        """For every logit, whether its token may come next."""
        return np.unpackbits(self._mask.view(np.uint8), count=self._logits, bitorder="little").view(np.bool_)

    def advance(self, token_id: int) -> FinishReason | None:
        """Take the token that was picked. Gives the reason why nothing can follow it, if so: the form is complete,
        or following it further would cost more than it may."""
        if self._inner.consume_token(token_id):
            if self._inner.is_stopped():
                return FinishReason.STOP
            self._inner.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
            if self.can_go_on:
                return None
            if not self._inner.is_error():
                return FinishReason.STOP
        # In full only here: its words quote the answer.
        _log.warning("an answer was cut off, because its form became too costly to follow")
        _log.debug("%s", self._inner.get_error())
        return FinishReason.LENGTH


class Grammars:
    """Compiles the forms of answers for one model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, *, logits: int) -> None:
        """`logits` is how many the model computes, often more than its tokenizer has tokens."""
        self._tokenizer = tokenizer
        self._logits = logits
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None

    def compile(self, grammar: str, *, field: str) -> Matcher:
        """A matcher at the beginning of an answer, to be copied for each. Takes from a millisecond to about a
        hundred, the first time for a model up to two seconds. Raises RequestError, in the library's words, for what
        it cannot follow."""
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415  # see form_grammar

        limits = LLParserLimits(**_LIMITS, verbose_errors=False)
        inner = LLMatcher(self._known_vocabulary(), grammar, log_level=0, limits=limits)
        if inner.is_error():
            raise _cannot_follow(field, inner.get_error())
        matcher = Matcher(inner, logits=self._logits, stops=self._stop_mask())
        if not matcher.can_go_on:
            is_empty = not matcher.error or matcher.error.startswith("NoExtension")
            raise _cannot_follow(field, "it allows no answer, or only the empty one" if is_empty else matcher.error)
        # Some forms turn out to be too costly with the first token only: better now than on the engine's thread.
        if error := matcher.copy().error_after(int(matcher.allowed().argmax())):
            raise _cannot_follow(field, error)
        return matcher

    def _known_vocabulary(self) -> LLTokenizer:
        with self._lock:
            if self._vocabulary is None:
                from llguidance import LLTokenizer, TokenizerWrapper  # noqa: PLC0415  # see form_grammar

                self._vocabulary = LLTokenizer(
                    TokenizerWrapper(_Words(self._tokenizer, self._logits)), eos_token=self._stop_ids()
                )
            return self._vocabulary

    def _stop_ids(self) -> list[int]:
        """A model without a token that ends an answer gets one beyond its logits, which it can never pick."""
        return sorted(self._tokenizer.stop_ids) or [self._logits]

    def _stop_mask(self) -> npt.NDArray[np.uint32]:
        mask = np.zeros(self._logits // 32 + 1, np.uint32)
        for token in self._stop_ids():
            mask[token // 32] |= np.uint32(1 << token % 32)
        return mask


class _Words:
    """A tokenizer as the library wants to see one. Control tokens are known by their names and are no text."""

    def __init__(self, tokenizer: Tokenizer, logits: int) -> None:
        texts = [tokenizer.token_bytes(token) for token in range(logits)]
        self.special_token_ids = [token for token, text in enumerate(texts) if not text]
        for token in self.special_token_ids:
            texts[token] = tokenizer.token_name(token).encode("utf-8", "replace")
        self.tokens = [*texts, b""]
        self.eos_token_id = min(tokenizer.stop_ids, default=logits)
        self.bos_token_id = tokenizer.bos_id
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, specials=False)


def _cannot_follow(field: str, why: str) -> RequestError:
    reason = " ".join(why.removesuffix("<non-verbose/>").split())[:_MOST_MESSAGE_CHARACTERS]
    return RequestError(f"`{field}` describes an answer that cannot be made: {reason}", param=field)
