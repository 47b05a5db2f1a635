#!/usr/bin/env python3
"""Small tokenizer files, one for each thing that io/tokenizer.c supports, with the ids and texts that Hugging Face's own
`tokenizers` (pip install tokenizers; 0.23 was used) gives for hostile texts.

    python3 tests/golden/make_tokenizer.py      writes tests/golden/tokenizers/NAME/{tokenizer.json,expected.jsonl,...}

The merges are learned from a few lines below, so that the files depend on nothing else. A line of expected.jsonl: text; ids with
and without special tokens recognised (special, plain); the ids of `special` decoded with and without special tokens
(decoded, decoded_plain)."""
import collections
import json
import os
import random

from tokenizers import Tokenizer

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizers")
LEARN = """def main(argc, argv): return 0 if argc == 1 else main(argc - 1, argv[1:])
the quick brown fox jumps over the lazy dog, and the dog doesn't mind; it's 12345 times 67890 that they've been there
    while (i < n) { total += values[i]; i++; }   // the total of the values
naïve café déjà-vu größer Ελληνικά русский текст 中文字符 日本語テキスト 한국어 שלום العربية हिन्दी 👩‍👩‍👧 🇩🇪
hello hello world worlds, the there these those; and hand and sand 2024-01-01 00:00:00 \t\t tab\ttab
"""
TEXTS = [
    "", " ", "  ", "   x", "x   ", "\n", "\n\n\n", "\r\n\r\n", " \n \n x", "\t\tif x:\n\t\t\treturn 12345\n", "hello world",
    " hello  world ", "Hello WORLD it's I'LL they'VE don't 'tis 'S'", "'\u017f '\u212a", "12345678901234567890", "1 22 333 4444",
    "x1y22z333", "\u0663\u0664\u0665 \u00bd \u2167 \u2460 \u00b2", "naïve cafe\u0301 e\u0323\u0307 e\u0307\u0323",
    "\u212b \u2126 \u00c5 A\u030a \ufb01 \u338f \u0958 \u0915\u093c", "\u1100\u1161\u11a8 \uac00\u11a8 \ud55c\uad6d",
    "か\u3099カ\u3099 ひらがな 中文字符 日本語", "שלום العربية हिन्दी ไทย", "👩\u200d👩\u200d👧🇩🇪👍🏽\ufe0f 🏴\U000e0067\U000e007f",
    "a\u00a0b\u3000c\u180ed\u200be\u2028f\x85g\x0bh\x1ci\u205fj\u1680k\ufeffl", "\u0000 nul\u0000\u0001\x7f", "\ufffd\U0010ffff\ue000",
    "... !!! ??? -- --- :: => != <= $^`|~+<=> §°«»‘’“”—", "a_b foo_bar __init__ CamelCase", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethethethethethethethethethethe and and and", "the the the the the the the the the the the the the the",
    "<s>hello</s>", "a<s>b </s> c", "<s><s>", "  <s>  ", "x<mask>y", "x <mask> y", "x \n<mask>\t y", "<mask><mask>", "word", "sword", "words",
    "a word.", "_word", "word\u0301", "\u200dword", "[NFC\u00e9]", "[NFCe\u0301]", "x[NFCe\u0301]y", "<tool>call</tool>", "<tool><tool>",
    "<to<tool>", "<tool", "abcd abc ab", "xabcdx", "qrst qrs qr", "<tool>+<tool>+", "theee\neeee hello\n\nee", "<0x0A> <0x41><unk>", "\u2581\u2581hello\u2581world", "hello\u2581 world \u2581x",
    "§§unknown§", "§", "x§y§§z", "\u0378\U000e0fff",
    "hello\u1c89\ua7cbhello 12\U00010d40\U00011de03 \U0001ccf0x x\u1b4ey \U000105c0\U00031350abc \u1b7f.\u2e5d", "hello\U00010d40hello\U0001fabfhello",
]
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|"
         r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_alphabet():
    kept = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    names, extra = {}, 0
    for b in range(256):
        if b in kept:
            names[b] = chr(b)
        else:
            names[b] = chr(256 + extra)
            extra += 1
    return names


def learn(words, count):
    """Merges of the commonest pairs; of equal ones, the one that comes first."""
    words = collections.Counter(tuple(w) for w in words)
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, n in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += n
        if not pairs:
            break
        best = max(pairs, key=lambda p: (pairs[p], p))
        if pairs[best] < 2:
            break
        merges.append(best)
        joined = collections.Counter()
        for word, n in words.items():
            out, i = [], 0
            while i < len(word):
                if word[i:i + 2] == best:
                    out.append(word[i] + word[i + 1])
                    i += 2
                else:
                    out.append(word[i])
                    i += 1
            joined[tuple(out)] += n
        words = joined
    return merges


def byte_model(count=160, **options):
    names = byte_alphabet()
    words = ["".join(names[b] for b in (" " + w).encode()) for w in LEARN.split()] * 2
    words += ["".join(names[b] for b in w.encode()) for w in LEARN.split()]
    merges = learn(words, count)
    vocab = {c: i for i, c in enumerate(sorted(names.values()))}
    for a, b in merges:
        vocab.setdefault(a + b, len(vocab))
    return model(vocab, merges, **options)


def character_model(count=160, alphabet=None, byte_tokens=range(256), extra=(), **options):
    words = ["\u2581" + w for w in LEARN.replace("\n", " ").replace("\t", " ").split(" ")]
    merges = learn(words, count)
    merges += [("\u2581", "\u2581"), ("\u2581\u2581", "\u2581\u2581")]
    vocab = {}
    for token in ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in byte_tokens]:
        vocab[token] = len(vocab)
    characters = set("".join(words)) if alphabet is None else set(alphabet)
    merges = [m for m in merges if set(m[0] + m[1]) <= characters | {"\u2581"}]
    for token in sorted(characters | {"\u2581"}) + [a + b for a, b in merges] + list(extra):
        vocab.setdefault(token, len(vocab))
    return model(vocab, merges, **options)


def model(vocab, merges, pairs=False, more=(), **options):
    for token in more:
        vocab.setdefault(token, len(vocab))
    merges = [[a, b] if pairs else a + " " + b for a, b in merges]
    return dict({"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                 "fuse_unk": False, "byte_fallback": False}, **options, vocab=vocab, merges=merges)


def added(content, special=False, **flags):
    return dict({"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": not special,
                 "special": special}, **flags)


SPECIALS = [added("<s>", True), added("</s>", True)]
MANY = SPECIALS + [added("<mask>", True, lstrip=True, rstrip=True), added("word", single_word=True), added("[NFC\u00e9]"),
                   added("<tool>", normalized=False), added("</tool>", lstrip=True), added("ab"), added("abcd"), added("abc", normalized=False),
                   added("qr"), added("qrst"), added("<tool>+", normalized=False)]
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def split(regex, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def split_text(text, behavior):
    return {"type": "Split", "pattern": {"String": text}, "behavior": behavior, "invert": False}


def sequence(key, *parts):
    return {"type": "Sequence", key: list(parts)}


def template(bos):
    return {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}}}


def metaspace(**options):
    return dict({"type": "Metaspace", "replacement": "\u2581"}, **options)


PREPEND = sequence("normalizers", {"type": "Prepend", "prepend": "\u2581"}, {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})
UNPREPEND = sequence("decoders", {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                     {"type": "Strip", "content": " ", "start": 1, "stop": 0})
FALLBACK = dict(byte_fallback=True, fuse_unk=True, unk_token="<unk>")

FILES = {
    "gpt2": dict(model=byte_model(), pre_tokenizer=dict(BYTE_LEVEL, add_prefix_space=True, use_regex=True), added=SPECIALS,
                 decoder=BYTE_LEVEL, post_processor=BYTE_LEVEL),
    "llama3": dict(model=byte_model(80, pairs=True, ignore_merges=True, more=["hello", "\u0120world", "\u0120the\u0120", "xyz", "<|odd \u00e9|>"]),
                   pre_tokenizer=sequence("pretokenizers", split(LLAMA3), BYTE_LEVEL), added=SPECIALS, decoder=BYTE_LEVEL,
                   post_processor=lambda ids: sequence("processors", BYTE_LEVEL, template(ids["<s>"]))),
    "smollm": dict(model=byte_model(), pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                                                              dict(BYTE_LEVEL, use_regex=True)), added=SPECIALS, decoder=BYTE_LEVEL),
    "qwen2": dict(model=byte_model(pairs=True), normalizer={"type": "NFC"}, pre_tokenizer=sequence("pretokenizers", split(QWEN2), BYTE_LEVEL),
                  added=MANY, decoder=BYTE_LEVEL),
    "gpt4o": dict(model=byte_model(pairs=True), pre_tokenizer=sequence("pretokenizers", split(GPT4O), BYTE_LEVEL), added=SPECIALS,
                  decoder=BYTE_LEVEL),
    "removed": dict(model=byte_model(), pre_tokenizer=sequence("pretokenizers", split(r"[^\s]+", "Removed", True), split(r"\p{P}|[$+<=>\^`|~]"), BYTE_LEVEL), added=SPECIALS, decoder=BYTE_LEVEL),
    "contiguous": dict(model=byte_model(), normalizer={"type": "NFKC"},
                       pre_tokenizer=sequence("pretokenizers", split(r"[a-m]|\d", "Contiguous"), {"type": "Digits", "individual_digits": False},
                                              {"type": "WhitespaceSplit"}, BYTE_LEVEL), added=MANY, decoder=BYTE_LEVEL),
    "merged": dict(model=byte_model(more=["ee"]), merge=["e e"], normalizer={"type": "NFD"},
                   pre_tokenizer=sequence("pretokenizers", split(r"[\r\ne]", "MergedWithPrevious"), split_text("the", "MergedWithNext"),
                                          split(r"(?<=\p{L})\p{N}|\x{4e2d}|\u6587", "Isolated"), split(r"\p{P}", "MergedWithPrevious"), BYTE_LEVEL), added=MANY, decoder=BYTE_LEVEL),
    "llama2": dict(model=character_model(**FALLBACK), normalizer=PREPEND, added=[added("<unk>", True)] + SPECIALS, decoder=UNPREPEND,
                   post_processor=lambda ids: template(ids["<s>"])),
    "llama2_added": dict(model=character_model(pairs=True, **FALLBACK), normalizer=PREPEND, added=MANY, decoder=UNPREPEND),
    "byte_merges": dict(model=character_model(alphabet="abcdefghijklmnopqrstuvwxyz ", extra=["<0xC3><0xA9>"], **FALLBACK), normalizer=PREPEND,
                        added=SPECIALS, decoder=UNPREPEND, merge=["<0xC3> <0xA9>"]),
    "some_bytes": dict(model=character_model(alphabet="abcdefghijklmnopqrstuvwxy", byte_tokens=list(range(0x80)) + [0xC3, 0xA9], **FALLBACK),
                       normalizer=PREPEND, added=SPECIALS, decoder=UNPREPEND),
    "unknown": dict(model=character_model(alphabet="abcdefghijklmnopqrstuvwx", byte_tokens=[], unk_token="<unk>"),
                    pre_tokenizer=metaspace(prepend_scheme="always", split=True), added=SPECIALS, decoder=metaspace(prepend_scheme="always")),
    "unknown_fused": dict(model=character_model(alphabet="abcdefghijklmnopqrstuvwx", byte_tokens=[], unk_token="<unk>", fuse_unk=True),
                          normalizer=PREPEND, added=SPECIALS, decoder=UNPREPEND),
    "dropped": dict(model=character_model(alphabet="acdefghiklmnoprstuw", byte_tokens=[]), normalizer=PREPEND, added=SPECIALS),
    "metaspace_first": dict(model=character_model(ignore_merges=True, more=["\u2581hello", "world"], **FALLBACK),
                            pre_tokenizer=metaspace(prepend_scheme="first", split=False), added=MANY,
                            decoder=sequence("decoders", {"type": "ByteFallback"}, metaspace(prepend_scheme="first"))),
    "metaspace_never": dict(model=character_model(**FALLBACK), pre_tokenizer=metaspace(prepend_scheme="never", add_prefix_space=False),
                            normalizer=sequence("normalizers", {"type": "NFKD"}, {"type": "Replace", "pattern": {"Regex": r"\s{2,3}|x"}, "content": "--"}),
                            added=SPECIALS, decoder=metaspace(prepend_scheme="never", add_prefix_space=False)),
}


def make(name, parts):
    bpe = json.loads(json.dumps(parts["model"]))
    bpe["merges"] += parts.get("merge", [])
    ids, tokens = dict(bpe["vocab"]), []
    for token in parts["added"]:
        ids.setdefault(token["content"], len(ids))
        tokens.append(dict(id=ids[token["content"]], **token))
    processor = parts.get("post_processor")
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": sorted(tokens, key=lambda t: t["id"]),
            "normalizer": parts.get("normalizer"), "pre_tokenizer": parts.get("pre_tokenizer"),
            "post_processor": processor(ids) if callable(processor) else processor, "decoder": parts.get("decoder"), "model": bpe}
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "tokenizer.json"), "w") as out:
        json.dump(file, out, ensure_ascii=False, separators=(",", ":"))
    rng = random.Random(name)
    texts = TEXTS + ["".join(rng.choice(TEXTS)[:12] for _ in range(12)) for _ in range(40)]
    tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "expected.jsonl"), "w") as out:
        for text in texts:
            line = {"text": text}
            for key, plain in (("special", False), ("plain", True)):
                tokenizer.encode_special_tokens = plain
                line[key] = tokenizer.encode(text, add_special_tokens=False).ids
            line["decoded"] = tokenizer.decode(line["special"], skip_special_tokens=False)
            line["decoded_plain"] = tokenizer.decode(line["special"], skip_special_tokens=True)
            out.write(json.dumps(line, separators=(",", ":")) + "\n")


for name, parts in FILES.items():
    make(name, parts)
