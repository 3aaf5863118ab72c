"""Make runtime/llm/tests/golden/{gguf-tokenizer,chat}: outputs of tokenizers and chat templates.

    python3 -m venv .venv
    .venv/bin/pip install tokenizers==0.23.3 transformers==5.23.0 sentencepiece==0.2.3 \\
        jinja2==3.1.6
    .venv/bin/python tools/make_gguf_tokenizer_golden.py -o runtime/llm/tests/golden

Each tokenizer is that of a family of models, with a small vocabulary trained on the text below. Its
file has the metadata of a GGUF file, and the tokens of TEXTS by Hugging Face's tokenizers (for the
SentencePiece families also by sentencepiece). Each chat case has a template, and the prompts that
transformers renders.

Exit codes: 0 success, 2 a package is missing.
"""

import argparse
import io
import json
import sys
from pathlib import Path

try:
    import sentencepiece
    from jinja2.exceptions import TemplateError
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
    )
    from tokenizers import trainers
    from transformers.convert_slow_tokenizer import generate_merges
    from transformers.utils.chat_template_utils import render_jinja_template
except ImportError as missing:
    print(
        f"make_gguf_tokenizer_golden: {missing}; install the packages listed in its first lines",
        file=sys.stderr,
    )
    sys.exit(2)

# Training text of the vocabularies.
CORPUS = """The quick brown fox jumps over the lazy dog. THE QUICK BROWN FOX isn't here; it's \
there, they've left.
In 1999 and 2024 there were 12345 of 1000000 things, 3.14159 or 50% of them.  Two  spaces,   \
three, and\ttabs.
def main(args):\n    for i in range(10):\n        print(f"{i}: {args[i]}")\n\n\nreturn None\r\n
naïve café résumé über Straße Ελλάδα Привет мир 你好世界 日本語のテキスト 한국어 नमस्ते ไทย 👋🏽 🎉 \
don't DON'T we'll I'm
12 34 567 89 012 345 1234567890 00 11 12 23 34 45 56 67 78 89, 12.34,56;78 1,000,000
 (it's) "don't" (we'll) they're... it's, don't! they've? I'm; we'll\n\n  x = y\n\n    z = x\n  \
if (x):\n
好م 好م 好م 好م 好م م  م  م  م  م  م  م  م  म् म् म् म् म्
好م好م好م好م好م好م好م好م好م好م好م好م \
म्\u0301म्\u0301म्\u0301म्\u0301म्\u0301म्\u0301म्\u0301म्\u0301म्\u0301म्\u0301
camelCaseWords HTTPServer snake_case_words kebab-case/path/to/file.txt https://example.com/?q=1&r=2 <b>bold</b>
""".split("\n")
# Frequent sequences that merges join, but some families cut: ends of lines, suffixes and spaces.
LETTERS = "bcdfghjklmnpqrtvwxyz"
CUT_BY_SOME = [text.join(LETTERS) for text in [";\n\n", " \n\n", "\n\n", "'stu", " " * 6]]

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "",
    " ",
    "     five spaces",
    "a  b   c    d     ",
    "\n",
    "one\n\ntwo\n\n\n   three\r\n\r\nfour \n five",
    "\ttab\t\ttabs",
    "it's IT'S we've WE'Ve I'll 'tis o'clock's'",
    "0 12 345 6789 01234567890 3.14 1,000,000 ²½ ٣٤٥ 12a34",
    "DON'T camelCaseWords HTTPServer XMLHttpRequest éÉ ǅ",
    "naïve cafe\u0301 résumé A\u030a \u1e9b\u0323",
    "你好，世界。日本語のテキスト、カタカナ 한국어",
    "नमस्ते ไทย שלום مرحبا Ελλάδα Привет",
    "👋🏽 🎉🎉 👨‍👩‍👧 text☃",
    "def f(x):\n    return x**2 # comment\n",
    "!!! ... --- === ~~~ $5 + €3 <= >= ^| `code` “quoted” ‘x’",
    "path/to/file.txt https://example.com/?q=1 a_b",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero",
    "\x00\x01\x7f\x80 \ufffd \U0010ffff",
    "<s>hello</s> <|end|> <tool_call>x</tool_call>",
    " lead and trail ",
    "你好م م  م好م  5म्\u0301م  ",
    "wholeword Xwholeword wholewords",
    "a;\n\nb; \n\nc \n\n\nd",
    "'stu it'stu 'Stu",
    "      six       seven              fourteen",
    "x" * 20 + " " * 17 + "\n" * 5 + "y",
]

GPT2_END = "<|endoftext|>"
SPLIT = "isolated"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CASED = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕ"
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d"
    "\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149"
    "\u214e\u2183\u2184Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
CJK = "[一-龥ࠀ-一가-\ud7ff]+"


def steps(*expressions):
    """Returns a pre-tokenizer that splits by each expression, then writes bytes as characters."""
    cut = [
        e if not isinstance(e, str) else pre_tokenizers.Split(Regex(e), SPLIT) for e in expressions
    ]
    return pre_tokenizers.Sequence(
        [*cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def gpt2(*before):
    return pre_tokenizers.Sequence(
        [*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )


SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT4O = TEKKEN.replace(r"+|[^", rf"+{SUFFIX}?|[^").replace(
    r"*|\p{N}", rf"*{SUFFIX}?|\p{{N}}{{1,3}}"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
KANA = "[一-龥\u3040-ゟ゠-ヿ]+"
DEEPSEEK = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u3040-ゟ゠-ヿ]+"


DIGITS = pre_tokenizers.Digits(individual_digits=True)
# One family for each pre-tokenizer: name, pre-tokenizer, flags for composed characters (NFC), for
# ignored merges, and for <s> by default, and the keys that add <s> and </s>.
FAMILIES = [
    ("gpt-2", gpt2(), False, False, False, {}),
    ("smollm", gpt2(DIGITS), False, False, False, {"bos": False}),
    ("command-r", gpt2(DIGITS), True, False, False, {"bos": True}),
    ("llama-bpe", steps(LLAMA3), False, True, True, {}),
    ("smaug-bpe", steps(LLAMA3), False, False, False, {"bos": True, "eos": True}),
    ("qwen2", steps(QWEN2), True, False, False, {"bos": False}),
    ("tekken", steps(TEKKEN), False, True, True, {}),
    (
        "deepseek-llm",
        steps("[\r\n]", CASED, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", CJK, r"\p{N}+"),
        False,
        False,
        False,
        {"bos": True},
    ),
    (
        "deepseek-coder",
        steps("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, DIGITS),
        False,
        False,
        False,
        {"eos": True},
    ),
    ("deepseek-v3", steps(r"\p{N}{1,3}", KANA, DEEPSEEK), False, False, False, {"bos": True}),
    (
        "spark2_5",
        steps(r"\p{N}{1,3}", KANA, DEEPSEEK.replace(r"[\r\n]*|\s*[\r\n]+", r"|[\r\n]"), DIGITS),
        False,
        False,
        False,
        {},
    ),
    ("youtu", steps(YOUTU, GPT4O.replace("{1,3}", "")), False, True, False, {}),
    ("laguna", steps(r"[^\n]+|[\n]+", QWEN2), False, False, False, {}),
    (
        "qwen35",
        steps(
            SUFFIX + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        True,
        False,
        False,
        {},
    ),
    ("ufakzeka", steps(QWEN2.removeprefix(SUFFIX + "|")), False, False, False, {}),
    (
        "seed-coder",
        steps(QWEN2.replace(r"\p{N}]+[\r\n]*", r"\p{N}\r\n]+")),
        False,
        False,
        False,
        {},
    ),
    (
        "bailingmoe",
        steps(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
            r"|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        False,
        False,
        False,
        {},
    ),
    (
        "exaone-moe",
        steps(
            SUFFIX + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        False,
        False,
        False,
        {},
    ),
    ("minicpm5", steps(r"\p{N}{1,3}", LLAMA3.replace("{1,3}", "+")), False, True, False, {}),
    (
        "jais-2",
        steps(
            LLAMA3.replace(
                r"\s+(?!\S)|\s+",
                "|".join(
                    [rf"\s{{{n}}}(?!\S)" for n in [512, 256, 128, 64, 32, 16, 8, 4, "1,2"]]
                    + [r"\s{1}"]
                ),
            )
        ),
        False,
        False,
        False,
        {},
    ),
    ("gpt-4o", steps(GPT4O), False, False, False, {}),
    ("tiny_aya", steps(r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O), False, False, False, {}),
    ("bloom", steps(BLOOM), False, False, False, {}),
    ("viking", steps(BLOOM, DIGITS), False, False, False, {}),
    ("superbpe", steps(r"\p{N}+", r"(?=(\d{3})+(?!\d))"), False, False, False, {}),
    (
        "default",
        steps(
            r"[\p{P}\$\+<=>\^~\|]+",
            r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
            r"\p{N}+",
            "[0-9][0-9][0-9]",
        ),
        False,
        False,
        False,
        {},
    ),
]
SPECIAL = {"<s>": 3, "</s>": 3, "<|end|>": 3, "<tool_call>": 4, "</tool_call>": 4}


def around(tokenizer, bos, eos):
    """Makes a tokenizer put <s> and </s> around texts."""
    template = " ".join(["<s>"] * bos + ["$A"] + ["</s>"] * eos)
    ids = [(token, tokenizer.token_to_id(token)) for token in ["<s>", "</s>"]]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)


def add(tokenizer, kinds):
    for token, kind in kinds.items():
        if kind in (2, 3, 4):
            tokenizer.add_tokens([AddedToken(token, special=kind != 4, normalized=False)])


def case(tokenizer, metadata, texts):
    tokens = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return {
        "metadata": metadata,
        "texts": [TEXTS.index(text) for text in texts],
        "tokens": tokens,
        "first": [tokenizer.encode(text).ids for text in texts[:3]],
        "decoded": {
            place: decoded
            for place, (text, ids) in enumerate(zip(texts, tokens))
            if (decoded := tokenizer.decode(ids)) != text
        },
    }


def train_byte_level():
    """Trains the model of all byte-level families, and returns its JSON."""
    # The model is trained on whole lines, so that some merges show where a family cuts.
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=480, initial_alphabet=sorted(alphabet), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS + CUT_BY_SOME, trainer)
    trained = json.loads(tokenizer.to_str())
    vocab = trained["model"]["vocab"]
    # No merge makes this word, so it is one token only in families that ignore merges.
    for token in ["Ġwholeword", *SPECIAL]:
        vocab[token] = len(vocab)
    return trained


def vocabulary(trained):
    """Returns the metadata of the tokens."""
    vocab = trained["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.get)
    return {
        "tokens": tokens,
        "token_type": [SPECIAL.get(token, 1) for token in tokens],
        "merges": [" ".join(merge) for merge in trained["model"]["merges"]],
        "bos_token_id": vocab["<s>"],
        "eos_token_id": vocab["</s>"],
    }


def byte_level(trained, name, pre, composes, ignores, bos, keys):
    """Returns a case without its vocabulary."""
    trained["model"]["ignore_merges"] = ignores
    tokenizer = Tokenizer.from_str(json.dumps(trained))
    tokenizer.pre_tokenizer = pre
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    add(tokenizer, SPECIAL)
    around(tokenizer, keys.get("bos", bos), keys.get("eos", False))
    added = {f"add_{key}_token": value for key, value in keys.items()}
    return case(tokenizer, {"model": "gpt2", "pre": name, **added}, TEXTS)


def sentence_piece(prefix):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=480,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        control_symbols=["<|end|>"],
        minloglevel=2,
    )
    original = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(original.get_piece_size())
    pieces = [original.id_to_piece(i) for i in ids]
    kinds = [
        2
        if original.is_unknown(i)
        else 3
        if original.is_control(i)
        else 6
        if original.is_byte(i)
        else 1
        for i in ids
    ]
    scores = [original.get_score(i) for i in ids]
    for token in ["<tool_call>", "</tool_call>"]:
        pieces.append(token)
        kinds.append(4)
        scores.append(0.0)
    vocab = {piece: i for i, piece in enumerate(pieces)}
    normal = {piece: score for piece, score, kind in zip(pieces, scores, kinds) if kind == 1}
    merges = generate_merges({piece: vocab[piece] for piece in normal}, normal)
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    normalize = [normalizers.Prepend("▁")] * prefix + [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(normalize)
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(undo + [decoders.Strip(" ", 1, 0)] * prefix)
    add(tokenizer, dict(zip(pieces, kinds)))
    around(tokenizer, True, False)
    for text in TEXTS:
        if "<s>" not in text and "\x00" not in text:
            tokens = tokenizer.encode(text, add_special_tokens=False).ids
            assert tokens == original.encode(text), (text, tokens, original.encode(text))
    metadata = {
        "model": "llama",
        "tokens": pieces,
        "scores": scores,
        "token_type": kinds,
        "bos_token_id": vocab["<s>"],
        "eos_token_id": vocab["</s>"],
        "unknown_token_id": vocab["<unk>"],
        **({} if prefix else {"add_space_prefix": False}),
    }
    return case(tokenizer, metadata, TEXTS)


# Chat templates: that of SmolLM2-135M-Instruct (Apache-2.0), and others in the style of the models
# in their names.
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}"
        "{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
        "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
        "'<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "llama3": """{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date is defined %}
    {%- set date = "1 Jan 2000" %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set told = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set told = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today: " + date + "\\n\\n" }}
{{- told }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + \
message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    "mistral": """{%- if messages[0]["role"] == "system" %}
    {%- set told = messages[0]["content"] %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{{- bos_token }}
{%- for turn in turns %}
    {%- if (turn["role"] == "user") != (ns.index % 2 == 0) %}
        {{- raise_exception("Roles must take turns: user, assistant, user, ...") }}
    {%- endif %}
    {%- set ns.index = ns.index + 1 %}
    {%- if loop.last and told is defined %}
        {{- "[INST] " + told + "\\n\\n" + turn["content"] + "[/INST]" }}
    {%- else %}
        {{- "[INST] " ~ turn["content"] ~ "[/INST]" }}
    {%- endif %}
{%- endfor %}
""",
    "refuses-system": """{{ bos_token }}{% for message in messages %}
    {% if message.role == 'system' %}
        {{ raise_exception('A system text is not supported') }}
    {% endif %}
{{ '<start_of_turn>' + message.role + '\n' + message.content.strip() + '<end_of_turn>\n' }}
{% endfor %}
{% if add_generation_prompt %}
<start_of_turn>model
{% endif %}
""",
    "qwen": """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endif %}
{%- set ns = namespace(seeking=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.seeking and message.role == "user" and message.content is string and \
not(message.content.startswith('<tool_response>') and \
message.content.endswith('</tool_response>')) %}
        {%- set ns.seeking = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content.split('</think>')[-1].lstrip('\\n') + \
'<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- generation %}
        {{- content }}
        {%- endgeneration %}
    {%- endif %}
{%- endfor %}
{{- {'last': ns.last, 'ü<&>': [1, true, none, "it's \\"é\\""]} | tojson }}
{{- [] | tojson(indent=2) ~ {'a': [1, {'b': 2}]} | tojson(indent=2) }}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
}
CHATS = [
    (None, "Who are you?"),
    ("You are terse.", "Who are you?"),
    ("  spaces around \n", '\n  leading, and trailing <b>&amp; "quotes"  \n'),
    ("", "{{ not_a_template }} {% if %} 你好 👋🏽"),
    (None, ""),
]


def chat(template):
    prompts = []
    for system, user in CHATS:
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": user})
        try:
            rendered, _ = render_jinja_template(
                [messages],
                chat_template=template,
                add_generation_prompt=True,
                bos_token="<s>",
                eos_token="</s>",
            )
            prompts.append(rendered[0])
        except TemplateError as error:
            prompts.append({"raises": str(error)})
    return {"template": template, "prompts": prompts}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True, help="the folder of golden data")
    out = parser.parse_args().out

    def write(path, data):
        path = out / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")) + "\n")

    trained = train_byte_level()
    cases = {name: byte_level(trained, name, *rest) for name, *rest in FAMILIES}
    cases["llama"] = sentence_piece(True)
    cases["llama-no-prefix"] = sentence_piece(False)
    write("gguf-tokenizer/texts.json", TEXTS)
    write("gguf-tokenizer/byte-level.json", vocabulary(trained))
    for name, made in cases.items():
        write(f"gguf-tokenizer/{name}.json", made)
    write("chat/chats.json", CHATS)
    for name, template in TEMPLATES.items():
        write(f"chat/{name}.json", chat(template))


if __name__ == "__main__":
    main()
