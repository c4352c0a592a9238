"""A prompt's fingerprint: equal for equal prompts, on every machine, and cheap for long ones."""

import hashlib

import pytest

from taximeter.records import Prompt


def test_token_ids_are_hashed_as_eight_little_endian_bytes_each() -> None:
    """The same on every machine, so that ledgers can be compared."""
    bytes_of_ids = b"\x01\0\0\0\0\0\0\0" + b"\xff\xff\xff\x7f\0\0\0\0"
    expected = "sha256:" + hashlib.sha256(bytes_of_ids).hexdigest()[:16]
    assert Prompt(token_ids=(1, 2**31 - 1)).fingerprint() == (expected,)


@pytest.mark.parametrize(
    ("one", "other"), [((1, 2), (2, 1)), ((1, 2), (12,)), ((), (0,)), ((2**63,), (2**63 + 1,)), ((-1,), (2**64 - 1,))]
)
def test_other_token_ids_have_another_fingerprint(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """Also those beyond any vocabulary, which are refused later and have a receipt before."""
    assert Prompt(token_ids=one).fingerprint() != Prompt(token_ids=other).fingerprint()
    assert Prompt(token_ids=one).fingerprint() == Prompt(token_ids=one).fingerprint()
