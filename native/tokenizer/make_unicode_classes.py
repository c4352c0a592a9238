"""Writes unicode_classes.inc: which characters are letters, numbers, marks, punctuation and white space.

    python native/tokenizer/make_unicode_classes.py

As the `tokenizers` library has them, so that words end where they end there. Run it again when the library moves to a
newer Unicode; tests/unit/engine/test_words.py tells.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Regex, pre_tokenizers

CLASSES = {  # as `CharacterClass` in words.h; everything else is `other`
    "upper": r"[\p{Lu}\p{Lt}]",
    "lower": r"\p{Ll}",
    "letter": r"[\p{Lm}\p{Lo}]",
    "mark": r"\p{M}",
    "number": r"\p{N}",
    "punctuation": r"\p{P}",
    "space": r"\s",
}


def main() -> None:
    """Ask the library about every character."""
    points = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    class_of = dict.fromkeys(points, "other")
    for name, pattern in CLASSES.items():
        splitter = pre_tokenizers.Split(Regex(pattern), "removed")
        kept: set[int] = set()
        for start in range(0, len(points), 1 << 14):
            text = "".join(map(chr, points[start : start + (1 << 14)]))
            kept.update(ord(character) for part, _ in splitter.pre_tokenize_str(text) for character in part)
        for point in points:
            if point not in kept:
                if class_of[point] != "other":
                    raise SystemExit(f"U+{point:04X} is {name} and {class_of[point]}")
                class_of[point] = name
    runs: list[str] = []
    before = None
    for point in points:
        if class_of[point] != before:
            before = class_of[point]
            runs.append(f"{{0x{point:X}, {before}}},")
    lines = [
        "// Made by make_unicode_classes.py: where a run of characters of one class begins.",
        *(" ".join(runs[at : at + 5]) for at in range(0, len(runs), 5)),
    ]
    Path(__file__).with_name("unicode_classes.inc").write_text("\n".join(lines) + "\n")


main()
