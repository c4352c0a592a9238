"""A form leaves a way to a whole answer open at every step, and ends the answer when it is complete."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taximeter.engine.structured import Grammars, Matcher, form_grammar
from taximeter.engine.tokenizer import Tokenizer
from taximeter.errors import RequestError
from taximeter.records import FinishReason, Form, FormKind
from tests.unit.engine.small_vocabularies import by_score, byte_level

BYTE_LEVEL = Tokenizer.from_vocabulary(byte_level(merges=('" :', ": ", '{ "', "t r", "tr ue", "1 2"), eos_id=None))
BY_SCORE = Tokenizer.from_vocabulary(by_score({"▁true": -1.0, "true": -2.0, '{"': -3.0, "▁": -4.0, "12": -5.0}))
TOKENIZERS = {"byte-level": BYTE_LEVEL, "by score": BY_SCORE}
PADDING = 37  # logits that no token belongs to


def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, logits=tokenizer.vocab_size + PADDING)


GRAMMARS = {name: grammars(tokenizer) for name, tokenizer in TOKENIZERS.items()}


def matcher(kind: FormKind, text: str, tokenizer: str = "byte-level") -> Matcher:
    return GRAMMARS[tokenizer].compile(form_grammar(Form(kind=kind, text=text, field="field")), field="field")


def walk(start: Matcher, tokenizer: Tokenizer, choose: np.random.Generator) -> tuple[str, FinishReason]:
    """A random answer: any token that may come, until one ends it."""
    follow, answer = start.copy(), list[int]()
    while len(answer) < 2000:
        allowed = np.flatnonzero(follow.allowed())
        assert len(allowed), "nothing may come, and the answer has not ended"
        assert allowed.max() < tokenizer.vocab_size
        answer.append(int(choose.choice(allowed)))
        if (reason := follow.advance(answer[-1])) is not None:
            return tokenizer.decode(answer) if tokenizer is BYTE_LEVEL else as_text(tokenizer, answer), reason
    raise AssertionError("no end")


def as_text(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = tokenizer.detokenizer(continuing=True)
    return "".join([*map(detokenizer.push, ids), detokenizer.flush()])


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
        "s": {"type": "string", "maxLength": 3},
        "list": {"type": "array", "items": {"enum": [True, None, "12"]}, "maxItems": 3},
    },
    "required": ["n", "s", "list"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_random_walk_through_a_schema_is_an_answer_that_keeps_to_it(tokenizer: str, seed: int) -> None:
    """Byte-level or SentencePiece, with tokens across the borders of the JSON's parts."""
    start = matcher(FormKind.JSON_SCHEMA, json.dumps(SCHEMA), tokenizer)
    text, reason = walk(start, TOKENIZERS[tokenizer], np.random.default_rng(seed))
    answer = json.loads(text)
    assert reason is FinishReason.STOP
    assert list(answer) == ["n", "s", "list"]
    assert 0 <= answer["n"] <= 99
    assert len(answer["s"]) <= 3
    assert all(item in (True, None, "12") for item in answer["list"])
    assert not re.search(r"[ \t\n]{30}", text), "white space goes on and on"


@pytest.mark.parametrize(
    ("kind", "text", "answers"),
    [
        (FormKind.REGEX, "[ab]{2}|é", {"aa", "ab", "ba", "bb", "é"}),
        (FormKind.CHOICE, '["yes", "no", "say \\"é\\"\\n"]', {"yes", "no", 'say "é"\n'}),
        (FormKind.GRAMMAR, 'root ::= "a" end\nend ::= [01] | "!"', {"a0", "a1", "a!"}),
        (FormKind.GRAMMAR, 'start: "a" end\nend: /[01]/ | "!"', {"a0", "a1", "a!"}),
        (FormKind.JSON_SCHEMA, '{"const": "x"}', {'"x"'}),
    ],
)
@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_each_kind_allows_its_answers_and_no_others(
    kind: FormKind, text: str, answers: set[str], tokenizer: str
) -> None:
    """All of them turn up, and the last token is the last of the text: nothing is generated to say that it ends."""
    start, choose = matcher(kind, text, tokenizer), np.random.default_rng(1)
    assert {walk(start, TOKENIZERS[tokenizer], choose)[0] for _ in range(100)} == answers


def test_an_answer_may_end_where_the_form_is_satisfied_and_could_go_on() -> None:
    """By a token that ends answers, which is allowed there and nowhere else."""
    (end,) = BYTE_LEVEL.stop_ids
    follow = matcher(FormKind.REGEX, "ab*").copy()
    letters = {letter: BYTE_LEVEL.encode(letter, specials=False)[0] for letter in "ab"}
    assert set(np.flatnonzero(follow.allowed())) == {letters["a"]}
    assert follow.advance(letters["a"]) is None
    assert set(np.flatnonzero(follow.allowed())) == {letters["b"], end}
    assert follow.advance(end) is FinishReason.STOP


def test_a_model_without_an_end_of_answers_ends_where_the_form_does() -> None:
    """It has no token for it, and needs none."""
    tokenizer = Tokenizer.from_vocabulary(byte_level(control=()))
    assert not tokenizer.stop_ids
    start = grammars(tokenizer).compile(
        form_grammar(Form(kind=FormKind.REGEX, text="[0-9]{3}", field="field")), field="field"
    )
    text, reason = walk(start, tokenizer, np.random.default_rng(0))
    assert re.fullmatch("[0-9]{3}", text)
    assert reason is FinishReason.STOP


def test_choices_follow_their_own_copies() -> None:
    """What one has written changes nothing for the other."""
    one = matcher(FormKind.CHOICE, '["ab", "cd"]')
    other = one.copy()
    before = other.allowed().copy()
    one.advance(BYTE_LEVEL.encode("a", specials=False)[0])
    assert (other.allowed() == before).all()
    assert not (one.allowed() == before).all()


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        (FormKind.JSON_SCHEMA, '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        (FormKind.JSON_SCHEMA, '{"type": "objekt"}', "objekt"),
        (FormKind.JSON_SCHEMA, '{"type": "string", "format": "colour"}', "colour"),
        (FormKind.JSON_SCHEMA, '{"$ref": "https://example.com/schema"}', "example.com"),
        (FormKind.JSON_SCHEMA, "false", "false"),
        (FormKind.JSON_SCHEMA, "{", "Expecting"),
        (FormKind.JSON_SCHEMA, "[" * 100_000, ""),
        (FormKind.JSON_SCHEMA, '{"x-guidance": 3}', "integer"),
        (FormKind.JSON_SCHEMA, '{"enum": ["' + "x" * 200_000 + '"]}', "131,072"),
        (FormKind.REGEX, "a(", "unclosed group"),
        (FormKind.REGEX, "(?=a)b", "look-ahead"),
        (FormKind.REGEX, "", "only the empty one"),
        (FormKind.REGEX, "(a{1000}){1000}", "too many"),
        (FormKind.CHOICE, "[]", "empty"),
        (FormKind.CHOICE, "[3]", ""),
        (FormKind.GRAMMAR, 'root ::= "a" missing', "missing"),
        (FormKind.GRAMMAR, 'start: "a" missing', "missing"),
        (FormKind.GRAMMAR, 'start: start "a"', "no answer"),
        (FormKind.GRAMMAR, "root ::= " + "(" * 5000, "recursion"),
        (FormKind.GRAMMAR, "no grammar", "Expected"),
    ],
)
def test_what_cannot_be_followed_is_refused_and_says_why(kind: FormKind, text: str, says: str) -> None:
    """Before anything is computed, in few words, and under the name that the caller has for it."""
    with pytest.raises(RequestError) as caught:
        matcher(kind, text)
    assert says in caught.value.message
    assert caught.value.param == "field"
    assert len(caught.value.message) < 500


def test_an_answer_that_leaves_its_form_is_cut_off() -> None:
    """As when a form becomes too costly to follow: nothing breaks, and it does not pretend to be whole."""
    follow = matcher(FormKind.REGEX, "ab*").copy()
    assert follow.advance(BYTE_LEVEL.encode("z", specials=False)[0]) is FinishReason.LENGTH


def test_one_vocabulary_is_built_for_all_threads() -> None:
    """It takes seconds for a large model: the second request waits for it instead of building another."""
    shared = grammars(BYTE_LEVEL)
    grammar = form_grammar(Form(kind=FormKind.REGEX, text="a+", field="field"))
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: shared.compile(grammar, field="field"), range(8)))
        built = {id(vocabulary) for vocabulary in threads.map(lambda _: shared._known_vocabulary(), range(8))}
    assert len(built) == 1
