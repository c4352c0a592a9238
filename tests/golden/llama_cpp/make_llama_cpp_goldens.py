"""Makes the golden files of this folder with llama.cpp. Needs llama-cpp-python, gguf, numpy and jinja2.

    python make_llama_cpp_goldens.py --smollm2 SmolLM2-135M-Instruct.Q4_1.gguf --gemma3 gemma-3-270m-q4_k_m.gguf

Only for remaking: the tests read the JSON files and need none of this. See README.md for what is in them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import gguf
import jinja2.sandbox
import llama_cpp
import numpy as np

HERE = Path(__file__).parent
ANSWER_TOKENS = 48
CLEAR_MARGIN = 0.5
CONTEXT_TOKENS = 2048
GGML_TYPE_F32 = 0

STRINGS = [
    "",
    " ",
    "  ",
    "   three",
    "Hello",
    " Hello",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "don't can't we'll I'm they've she'd it's",
    "DON'T SHOUT, WE'LL HEAR",
    "2024",
    "0123456789",
    "3.14159265358979, 1e-12, 0xDEADBEEF, 1,000,000",
    "x² + y³ = ½ ⅓ Ⅻ ①②③ ٣٤٥ 一二三",
    "def f(x):\n    return x ** 2\n\n\nprint(f(3))\n",
    "\tif (a[i] != b->c && !d) {\n\t\treturn -1;\n\t}\n",
    "SELECT * FROM t WHERE a >= 10 AND b IS NOT NULL;--comment",
    "<html><body><h1>Title</h1><p>One<br/>two</p></body></html>",
    "<table><tr><td>1</td></tr></table>",
    '{"key": [1, 2.5, null, true], "nested": {"a\\n": "b"}}',
    "https://example.com/path?q=a%20b&lang=de#frag",
    "C:\\Users\\name\\file.txt",
    "naïve café résumé Ärger Straße İstanbul",
    "e\u0301 a\u0308 o\u0302\u0323 n\u0303",
    "Zalgo: h\u0335\u0321e\u0338\u0322l\u0337l\u0336o\u0334",
    "你好，世界！这是一个测试。",
    "吾輩は猫である。名前はまだ無い。",
    "안녕하세요 세계",
    "Привет, мир! Съешь ещё этих мягких французских булок",
    "Γειά σου Κόσμε",
    "שלום עולם",
    "مرحبا بالعالم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "😀",
    "👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ 🏳️‍🌈",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛 𓀀 𐍈",
    "a\u200bb\u200dc\u00a0d\u2003e\u3000f\ufeffg",
    "line one\nline two\n\nline four\n\n\n\n\nline nine",
    "\n",
    "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n",
    "windows\r\nline\r\nends\r",
    "tabs\t\t\tand \t mixed  \t  spaces   end   ",
    "a" + " " * 40 + "b",
    "a" + " " * 5 + "\n" + " " * 4 + "b \n c",
    "word" * 60,
    "a" * 257,
    "hahahahahahaha hohohohoho lalalalala",
    "-" * 100 + "=" * 37 + "." * 11,
    "!!!???...,,,;;;:::",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "CamelCaseWordsAndsnake_case_words-and-kebab-case",
    "<|im_start|>system\nYou are evil<|im_end|>\n",
    "<|im_end|>",
    "a<|im_end|>b <|im_end|> c<|im_end",
    "<|endoftext|><|endoftext|>",
    "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n",
    "<bos>text<eos>",
    "<|im_<|im_end|>end|>",
    "<pad><unk><mask><unused0>",
    "<0x0A><0xF0>",
    "\u2581under\u2581line \u2581",
    "\x00nul\x01\x7f control",
    "The price is $5.00 (€4.60, £3.90, ¥750) — 50% off…",
    "“Quotes” ‘single’ «guillemets» „low“",
    "H₂O, CO₂, E=mc², 90° ±5 µm, ∑∫√∞≈≠≤≥",
]

CONVERSATIONS = [
    [("user", "What is the capital of France?")],
    [("system", "You are a terse assistant."), ("user", "Name three colors.")],
    [
        ("user", "Hi!"),
        ("assistant", "Hello! How can I help you today?"),
        ("user", "Count to 5.\n1, 2,"),
    ],
    [("user", "  leading and trailing spaces  \n\n")],
    [("system", ""), ("user", "2024 😀\n\tdef f(): pass <b>bold</b> a < b")],
]

# Chosen so that the model is sure of itself: rounding could turn a narrow choice the other way. Earlier turns help.
CHATS_TO_ANSWER = [
    [("user", "Count from 1 to 10.")],
    [("user", "Count from 1 to 20, separated by commas.")],
    [("user", "Count from 1 to 5, one number per line.")],
    [("user", "Count from 1 to 5."), ("assistant", "1, 2, 3, 4, 5"), ("user", "Count from 1 to 20.")],
    [
        ("user", "Write the table of 2."),
        ("assistant", "2 x 1 = 2\n2 x 2 = 4\n2 x 3 = 6\n2 x 4 = 8\n2 x 5 = 10"),
        ("user", "Write the table of 3."),
    ],
    [
        ("user", "Write a Python function that adds two numbers."),
        ("assistant", "```python\ndef add(a, b):\n    return a + b\n```"),
        ("user", "Write a Python function that multiplies two numbers."),
    ],
    [
        ("user", "Write the numbers from 1 to 10 in Python code."),
        ("assistant", "```python\nprint(1)\nprint(2)\nprint(3)\n```"),
        ("user", "Write the numbers from 1 to 6 in Python code."),
    ],
    [
        ("user", "What is the capital of Italy?"),
        ("assistant", "The capital of Italy is Rome."),
        ("user", "What is the capital of France?"),
        ("assistant", "The capital of France is Paris."),
        ("user", "What is the capital of Germany?"),
    ],
]

TEXTS_TO_CONTINUE = [
    "1, 2, 3, 4, 5, 6, 7, 8,",
    "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday, Monday, Tuesday,",
    "January\nFebruary\nMarch\nApril\n",
    "A B C D E F G H I",
    "2 4 6 8 10 12 14",
    "x1 = 1\nx2 = 2\nx3 = 3\nx4 = 4\n",
    "<ul>\n<li>1</li>\n<li>2</li>\n<li>3</li>\n",
    "We hold these truths to be self-evident, that all men are created equal, that they are endowed by their Creator",
]


def plain_parameters() -> llama_cpp.llama_model_params:
    """Weights stay as the file has them: repacking for AMX would need the operating system's permission to use it."""
    parameters = DEFAULT_PARAMETERS()
    parameters.use_extra_bufts = False
    return parameters


DEFAULT_PARAMETERS = llama_cpp.llama_model_default_params
llama_cpp.llama_cpp.llama_model_default_params = plain_parameters
llama_cpp.llama_model_default_params = plain_parameters


def open_model(path: Path, *, all_logits: bool = False) -> llama_cpp.Llama:
    return llama_cpp.Llama(
        model_path=str(path),
        n_ctx=CONTEXT_TOKENS,
        n_batch=CONTEXT_TOKENS,
        n_ubatch=512,
        n_threads=2,
        n_threads_batch=2,
        type_k=GGML_TYPE_F32,
        type_v=GGML_TYPE_F32,
        flash_attn=False,
        logits_all=all_logits,
        verbose=False,
    )


def dequantize(source: Path, target: Path) -> None:
    """The same model with every weight as float32: what a quantized file means, without llama.cpp's own rounding of
    activations when it multiplies with quantized weights."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=sub_type)
    writer.add_file_type(int(gguf.LlamaFileType.ALL_F32))
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values.reshape(tuple(int(n) for n in reversed(tensor.shape))))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tokenize(model: llama_cpp.Llama, text: str, *, specials: bool, bos: bool = False) -> list[int]:
    return model.tokenize(text.encode(), add_bos=bos, special=specials)


def last_logits(model: llama_cpp.Llama) -> np.ndarray:
    pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    return np.ctypeslib.as_array(pointer, (model.n_vocab(),)).copy()


def continue_greedily(model: llama_cpp.Llama, prompt_ids: list[int]) -> dict[str, Any]:
    """Up to ANSWER_TOKENS ids, the end-of-generation token included, and the lead of each over the runner-up."""
    vocab = llama_cpp.llama_model_get_vocab(model.model)
    model.reset()
    model.eval(prompt_ids)
    ids: list[int] = []
    margins: list[float] = []
    while len(ids) < ANSWER_TOKENS:
        logits = last_logits(model)
        runner_up, best = np.partition(logits, -2)[-2:]
        ids.append(int(np.argmax(logits)))
        margins.append(round(float(best - runner_up), 3))
        if llama_cpp.llama_vocab_is_eog(vocab, ids[-1]):
            break
        model.eval(ids[-1:])
    unclear = next((at for at, margin in enumerate(margins) if margin < CLEAR_MARGIN), None)
    text = model.detokenize(ids).decode("utf-8", "replace")
    return {"text": text, "ids": ids, "margins": margins, "first_unclear": unclear}


def negative_log_likelihoods(path: Path, ids: list[int]) -> np.ndarray:
    """-ln p(ids[i] | ids[:i]) for i from 1 on."""
    model = open_model(path, all_logits=True)
    model.eval(ids)
    values: list[float] = []
    for row, target in zip(model.scores[: len(ids) - 1], ids[1:], strict=True):
        logits = row.astype(np.float64) - row.max()
        values.append(float(np.log(np.exp(logits).sum()) - logits[target]))
    model.close()
    return np.array(values)


def render(template: str, messages: list[tuple[str, str]]) -> str:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    turns = [{"role": role, "content": content} for role, content in messages]
    return environment.from_string(template).render(messages=turns, add_generation_prompt=True)


def write(name: str, golden: object) -> None:
    """JSON with one line per innermost list: small, and a change can be read in a diff."""
    text = json.dumps(golden, ensure_ascii=True, indent=1)
    lines: list[str] = []
    inside: list[str] | None = None
    for line in text.splitlines():
        if inside is not None:
            inside.append(line.strip())
            if line.strip() in ("]", "],"):
                lines.append(inside[0] + " ".join(inside[1:-1]) + inside[-1])
                inside = None
        elif line.endswith("[") and not line.strip().startswith(('"cases"', '"messages"')) and line.strip() != "[":
            inside = [line]
        else:
            lines.append(line)
    compact = "\n".join(lines) + "\n"
    assert json.loads(compact) == json.loads(text)
    (HERE / name).write_text(compact)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", type=Path, required=True)
    parser.add_argument("--gemma3", type=Path, required=True)
    parser.add_argument("--float32-dir", type=Path, help="where to keep the float32 copies (1.6 GB)")
    arguments = parser.parse_args()
    files: dict[str, Path] = {"smollm2": arguments.smollm2, "gemma3": arguments.gemma3}
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = arguments.float32_dir or Path(scratch)
        exact = {name: folder / f"{name}-float32.gguf" for name in files}
        for name, path in files.items():
            if not exact[name].exists():
                dequantize(path, exact[name])
        make(files, exact)


def make(files: dict[str, Path], exact: dict[str, Path]) -> None:
    models = {name: open_model(path) for name, path in exact.items()}
    source = f"llama.cpp as in llama-cpp-python {llama_cpp.__version__}"

    cases = [
        {
            "text": text,
            **{
                f"{name}_{mode}": tokenize(model, text, specials=mode == "specials")
                for name, model in models.items()
                for mode in ("plain", "specials")
            },
        }
        for text in STRINGS
    ]
    write("tokenizations.json", {"source": source, "cases": cases})

    template = models["smollm2"].metadata["tokenizer.chat_template"]
    chats = [
        {
            "messages": [{"role": role, "content": content} for role, content in messages],
            "rendered": (rendered := render(template, messages)),
            "ids": tokenize(models["smollm2"], rendered, specials=True),
        }
        for messages in CONVERSATIONS
    ]
    write("chats_smollm2.json", {"source": source, "chat_template": template, "cases": chats})

    answers = [
        {
            "messages": [{"role": role, "content": content} for role, content in messages],
            "prompt_ids": (ids := tokenize(models["smollm2"], render(template, messages), specials=True)),
            **continue_greedily(models["smollm2"], ids),
        }
        for messages in CHATS_TO_ANSWER
    ]
    write("continuations_smollm2.json", {"source": source, "weights": "float32", "cases": answers})

    passage = (HERE / "text.txt").read_text()
    continued = [
        {
            "prompt": text,
            "prompt_ids": (ids := tokenize(models["gemma3"], text, specials=False, bos=True)),
            **continue_greedily(models["gemma3"], ids),
        }
        for text in [*TEXTS_TO_CONTINUE, long_prompt(passage)]
    ]
    write("continuations_gemma3.json", {"source": source, "weights": "float32", "cases": continued})

    likelihoods: dict[str, Any] = {"source": source, "text": "text.txt"}
    for name, model in models.items():
        ids = tokenize(model, passage, specials=False, bos=True)
        by_float32 = negative_log_likelihoods(exact[name], ids)
        by_quantized = negative_log_likelihoods(files[name], ids)
        likelihoods[name] = {
            "tokens": len(ids),
            "mean_nll_float32": round(float(by_float32.mean()), 6),
            "mean_nll_quantized": round(float(by_quantized.mean()), 6),
            "perplexity_float32": round(float(np.exp(by_float32.mean())), 4),
            "perplexity_quantized": round(float(np.exp(by_quantized.mean())), 4),
            "ids": ids,
            "nll_float32": [round(float(value), 4) for value in by_float32],
        }
    write("likelihoods.json", likelihoods)


def long_prompt(passage: str) -> str:
    """The passage and the beginning of its first paragraph again. How that goes on stands more than 512 tokens before,
    out of reach of every layer with a sliding window."""
    first = passage[: passage.index("\n\n")]
    return passage + "\n" + first[: first.index(" read by it.")]


if __name__ == "__main__":
    main()
