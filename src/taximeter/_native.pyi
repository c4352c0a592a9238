"""Types of the native extension (native/bindings.cpp). It is absent where it could not be built."""

import numpy as np
import numpy.typing as npt

def levels() -> list[str]:
    """Levels that were built and that this processor and its operating system run, slow to fast."""

def usable_processors(root: str) -> int:
    """What `threads` begins with. Reads the process's limits below `root`, which is "" but in tests."""

def threads() -> int: ...
def set_threads(count: int) -> None: ...
def read_gb_per_s(level: str, threads: int, bytes: int, seconds: float) -> float:
    """How fast `threads` threads read `bytes` bytes of memory, the best of some rounds within `seconds`."""

def gop_per_s(level: str, unit: str, threads: int, seconds: float) -> float | None:
    """10⁹ operations a second in registers, of int8, bf16 or f32 numbers; None where the level has no unit for them."""

class PackedMatrix:
    """A weight matrix in a file's own quantized values, packed for the kernels."""

    def __init__(self, format: str, rows: npt.NDArray[np.uint8], k: int) -> None: ...
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def unpack_rows(self, indices: npt.NDArray[np.int64], out: npt.NDArray[np.float32]) -> None: ...

def paged_attention(
    level: str,
    q: npt.NDArray[np.float32],
    cache: npt.NDArray[np.float32] | npt.NDArray[np.uint16] | npt.NDArray[np.int8],
    block_tables: npt.NDArray[np.int32],
    row_seq: npt.NDArray[np.int32],
    row_pos: npt.NDArray[np.int32],
    scale: float,
    window: int | None,
    out: npt.NDArray[np.float32],
) -> None: ...
def kv_put(
    level: str,
    k: npt.NDArray[np.float32],
    v: npt.NDArray[np.float32],
    cache: npt.NDArray[np.float32] | npt.NDArray[np.uint16] | npt.NDArray[np.int8],
    slots: npt.NDArray[np.int64],
) -> None: ...
def matmul_packed(
    level: str, w: PackedMatrix, x: npt.NDArray[np.float32], out: npt.NDArray[np.float32], bf16: bool, zeros: bool
) -> None: ...
def quantize_activations(
    level: str,
    x: npt.NDArray[np.float32],
    q: npt.NDArray[np.int8],
    d: npt.NDArray[np.float32],
    z: npt.NDArray[np.int32],
    s: npt.NDArray[np.float32],
    s_half: npt.NDArray[np.float32],
    zeros: bool,
) -> None: ...
def round_activations(level: str, x: npt.NDArray[np.float32], out: npt.NDArray[np.uint16]) -> None: ...
def multiplies_bf16(level: str, format: str) -> bool:
    """Whether a level has units for weights of a format rounded to bf16, times activations rounded to bf16."""

def quantize_rows(format: str, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Weights in the file layout of a format, rounded as GGML does: F32, F16, BF16, Q8_0 or Q4_0."""

class KVCache:
    """Keys and values in blocks, for one or two groups of layers: those that see everything, then those that slide.

    `format` is f32, bf16 or int8, `layers` and `blocks` are counts for each group. ValueError for a layout that cannot
    be, MemoryError for more than there is.
    """

    def __init__(
        self, format: str, kv_heads: int, head_dim: int, block_tokens: int, layers: list[int], blocks: list[int]
    ) -> None: ...
    def copy_block(self, group: int, source: int, target: int) -> None:
        """All that block `source` of a group holds, into block `target`. IndexError for what is not there."""
    def touch_block(self, group: int, block: int) -> None:
        """Take a block's memory from the system; what it holds stays. Others run meanwhile. IndexError for what is not
        there."""

class Decoder:
    """A decoder-only transformer over packed weights. Set every part, then `finish`; ValueError for what does not fit.

    Matrices come as rows of bytes in the file's own layout of `format` (GGUF's names), with `k` input features.
    """

    def __init__(
        self,
        *,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        ff: int,
        vocab: int,
        sliding: list[bool],
        window: int,
        rms_eps: float,
        attention_scale: float,
        embedding_scale: float,
        logit_softcap: float,
        bf16_units: bool,
        gelu: bool,
        turns_everywhere: list[float],
        turns_sliding: list[float],
    ) -> None: ...
    def set_matrix(self, layer: int, part: str, format: str, rows: npt.NDArray[np.uint8], k: int) -> None: ...
    def set_embedding(self, format: str, rows: npt.NDArray[np.uint8], k: int) -> None: ...
    def set_head(self, format: str, rows: npt.NDArray[np.uint8], k: int) -> None: ...
    def set_vector(self, layer: int, part: str, values: npt.NDArray[np.float32]) -> None: ...
    def set_output_norm(self, values: npt.NDArray[np.float32]) -> None: ...
    def finish(self) -> None: ...
    def forward(
        self,
        level: str,
        cache: KVCache,
        token_ids: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int32],
        row_seq: npt.NDArray[np.int32],
        slots: list[npt.NDArray[np.int64]],
        block_tables: list[npt.NDArray[np.int32]],
        logit_rows: npt.NDArray[np.int64],
        out: npt.NDArray[np.float32] | npt.NDArray[np.int64],
        generated_rows: int,
    ) -> None:
        """Compute one step into `out`: float32 (logit rows, vocabulary) for logits, int64 (logit rows,) for the tokens
        with the greatest ones. Every index is checked first: ValueError."""

    def profile(self, on: bool) -> None:
        """Start counting the nanoseconds of each kind of work from zero, or stop."""

    @property
    def phases(self) -> dict[str, int]:
        """Nanoseconds by kind of work."""

    @property
    def group_layers(self) -> list[int]: ...
    @property
    def pass_bytes(self) -> int:
        """What a pass that gives logits reads of the weights."""

    @property
    def read_bytes(self) -> int:
        """What the last pass read of them: not the head where no logits were asked for, and of the head a coarser copy
        and little else where that is enough to find the best tokens."""

def string_starts(bytes: npt.NDArray[np.uint8], at: int, count: int, longest: int) -> npt.NDArray[np.int64] | None:
    """Where each of `count` strings begins that lie as in a GGUF file from byte `at` on, and at last where they end;
    None where one is cut off, longer than `longest`, or not UTF-8."""

class Texts:
    """A copy of many texts; `starts` as `string_starts` gives them."""

    def __init__(self, bytes: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64]) -> None: ...
    def __len__(self) -> int: ...
    def utf8(self, at: int) -> bytes: ...
    def ids_of(self, names: list[str]) -> list[int]: ...
    @property
    def longest_characters(self) -> int: ...

def words(steps: list[str], text: str) -> list[str]:
    """A text cut by one step after the other. See `library_merges.WORD_PATTERNS`."""

def sqlite_rows_entry() -> int:
    """The address of what SQLite calls with each new connection. See `native/sqlite_rows/sqlite_rows.h`. Absent where
    SQLite's headers were not there, as is the next one."""

class ColumnRows:
    """Rows that SQLite can select from `taximeter_rows(handle)`, for as long as this lives."""

    def __init__(self, numbers: npt.NDArray[np.int64], columns: list[list[tuple[object, int]]]) -> None:
        """In the order of `numbers`, which follow one on the other. A piece of a column is an array of int64, one of
        texts in bytes of uint8 [rows, width] that end with zeros, a tuple of texts, whole numbers and None, or one of
        these, and for how many rows that is. What lies in arrays is copied."""

    def add(self, column: list[tuple[object, int]]) -> None:
        """One column more, the last; before somebody asks for the handle."""

    @property
    def handle(self) -> int: ...

class FoundFile:
    """What `usage_calls` found in a file. See `native/transcripts/whole_file.h`."""

    @property
    def is_plain(self) -> bool: ...
    @property
    def device(self) -> int: ...
    @property
    def inode(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def modified_ns(self) -> int: ...
    @property
    def began(self) -> bytes: ...
    @property
    def before_last(self) -> bytes: ...
    @property
    def read_bytes(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def last_begin(self) -> int: ...
    def columns(
        self,
    ) -> tuple[npt.NDArray[np.uint8], list[str | None], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Of each call: what its ids end with [calls, 22], the request's id, the instant in microseconds since 1970,
        and the leaves [leaves, calls]."""

    def runs(
        self,
    ) -> list[
        tuple[tuple[str | None, str | None, str | None, str | None, bool, str, str | None, str | None, str | None], int]
    ]:
        """For calls one behind the other that have it in common: a `usual_lines.Common`, and before which place they
        end."""

def usage_calls(
    source: str,
    files: list[tuple[bytes, int]],
    block_bytes: int,
    most_line_bytes: int,
    began_bytes: int,
    before_last_bytes: int,
) -> list[FoundFile]:
    """Files of a source by their paths, from an offset on, without Python's lock. See `importers.usual_lines`."""

def usage_lines(
    buffer: bytearray, first: int, end: int
) -> list[
    tuple[int, int]
    | tuple[
        int,
        str,
        str,
        str | None,
        tuple[int, ...],
        tuple[str | None, str | None, str | None, str | None, bool, str, str | None, str | None, str | None],
    ]
]:
    """See `importers.usual_lines`. The buffer is only read. ValueError where the lines are not in it."""

class MergesByRank:
    """Byte-level BPE. Everything is copied. See `native_merges.merge_by_rank`."""

    def __init__(
        self,
        texts: Texts,
        mergeable: npt.NDArray[np.bool_],
        merges: Texts,
        of_bytes: npt.NDArray[np.int32],
        alphabet: Texts,
        steps: list[str],
        whole_words: bool,
    ) -> None: ...
    def merge(self, text: str) -> list[int]: ...

class MergesByScore:
    """SentencePiece's BPE. Every array is copied. See `native_merges.merge_by_score`."""

    def __init__(
        self,
        texts: Texts,
        mergeable: npt.NDArray[np.bool_],
        scores: npt.NDArray[np.float32],
        of_bytes: npt.NDArray[np.int32],
        unknown: int,
    ) -> None: ...
    def merge(self, text: str) -> list[int]: ...
    def any_holds(self, mark: str, before: str) -> bool: ...
