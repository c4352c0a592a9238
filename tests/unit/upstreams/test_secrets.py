"""Keys are given out by `reveal` alone, and taken out of what others say."""

from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taximeter.upstreams.secrets import Secret, concealed, keys_shown

KEY = "sk-0123456789"


def test_nothing_prints_copies_or_pickles_one() -> None:
    """Whatever a log or a crash report does to it."""
    secret = Secret(KEY, "env:K")
    for shown in (repr(secret), str(secret), f"{secret}", repr([secret]), f"{secret!r:>50}"):
        assert KEY not in shown
        assert "env:K" in shown
    for travel in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            travel(secret)


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_a_repeated_key_is_taken_out(before: bytes, after: bytes) -> None:
    """And nothing else; what is too short to be a key is none."""
    key = KEY.encode()
    assert concealed(before + after, [b"short"]) == before + after
    hidden = concealed(before + key + after, [key])
    assert key not in hidden
    assert b"[key]" in hidden
    assert len(hidden) <= len(before + key + after)


def test_whose_key_was_shown() -> None:
    """The upstream's own where it has one, else those that the client sent."""
    headers = [(b"authorization", b"Bearer abc"), (b"x-api-key", b"def"), (b"accept", b"*/*")]
    assert keys_shown(Secret(KEY, "env:K"), headers) == [KEY.encode()]
    assert keys_shown(None, headers) == [b"abc", b"def"]
