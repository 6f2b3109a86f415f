#!/usr/bin/env python3
"""Golden cases of tokenizers, made by Hugging Face's `tokenizers`.

    python3 tests/golden/tokenizer.py            writes tests/golden/tokenizer.jsonl
    python3 tests/golden/tokenizer.py --check    makes them again and compares with the committed file

One JSON object a line. The first are a text and tokenizers learnt from it there, as tokenizer.json: with all tokens there are, with
added ones too, and with 300; then the tokens that the first two make of a number of texts. Needs the package `tokenizers`.
"""
import pathlib
import random
import sys

from cases import finish
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

FILE = pathlib.Path(__file__).with_name("tokenizer.jsonl")

CORPUS = """\
A program that gives one answer should give it everywhere. It shouldn't matter who runs it, or when, or on how many
threads: the bits are the bits. We've seen programs whose answers weren't the same twice in a row, and nobody could say
which of them was right; they're hard to test, harder to trust, and the hardest to repair.

    for step in range(1000):
        loss = train(step)   # the loss of 1000 steps
        if step % 100 == 0:
            print(f"{step:5d}  {loss:.6f}")

Ein Programm, das eine Antwort gibt, soll sie überall geben. Größe, Straße, Übermut, schöne Grüße.
Un programme qui donne une réponse doit la donner partout : l'été, l'hiver, à Noël, ça va de soi.
Программа, которая даёт ответ, должна давать его везде. Числа, числа, числа: 1, 2, 3, 10, 20, 30.
一つの答えを出すプログラムは、どこでも同じ答えを出すべきです。数字は二〇二五。
프로그램은 어디서나 같은 답을 주어야 합니다. 답은 하나입니다.
برنامج يعطي جوابا واحدا يجب أن يعطيه في كل مكان. ١٢٣
ένα πρόγραμμα που δίνει μία απάντηση πρέπει να τη δίνει παντού.
एक कार्यक्रम जो एक उत्तर देता है, उसे हर जगह देना चाहिए।
The tests pass 👍, the tests pass 👍🏽, the tests fail 😢; 3 × 4 = 12, x² + y² = z², ½ + ¼ = ¾.
"""

TEXTS = [
    "", " ", "  ", "\n", "\n\n", " \n ", "\t\tx", "a", "the", " the", "  the", "The program gives the answer.",
    "it's we'll I'd you've they're I'm can't", "IT'S 'tis ''s '", "don't'll've", "x1y2 10000 3.14159 1,000,000",
    "trailing  ", "trailing \n", "trailing\u00a0", "line\r\nline\r\n", "tab\tand\x0bvt\x0cff\x85nel\u2028ls\u3000wide",
    "größe Grüße STRASSE ǅ ªº ʰ", "Числа и ответ", "一つの答え東京", "답은 하나", "جواب ١٢٣ ۴۵۶", "नमस्ते दुनिया १२३",
    "x² ½ Ⅷ ⑧ 〇 ௧", "👍 👍🏽 👨‍👩‍👧‍👦 🇩🇪 😢😢", "e\u0301 n\u0303 a\u200db", "\u0000\u0001\u007f", "\ufeffBOM", "a" * 70, "the " * 40,
    "<|endoftext|>", "a<|endoftext|>b", "<|endoftext|><|endoftext|> <|endoftext", " <|end|> <|endoftext|>\n\n<|end|>x", "answer the answer to answers",
    "if (x != y) { return x->z[3] += '\\n'; }  // \"quoted\" #hash\n", "https://example.org/a?b=c&d=%20e#f", "snake_case camelCase kebab-case",
]


def random_texts():
    pool = ["a", "e", "the", "ing", "Z", "ß", "é", "я", "東", "답", "ا", "न", "्", "1", "9", "²", "٣", ".", ",", "'", "'s", "'ll", "'T", "-", "_",
            " ", " ", " ", "  ", "\n", "\t", "\r", "\u00a0", "\u2003", "\u200b", "👍", "🏽", "\u0301", "\ufffd", "€", "<|", "|>", "<|end|>"]
    dice = random.Random(7)
    return ["".join(dice.choice(pool) for _ in range(dice.randrange(1, 40))) for _ in range(120)]


def learnt(size):
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=2, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([CORPUS], trainer)
    return made


def main():
    # As many as there are, and fewer.
    plain, few = learnt(1000), learnt(300)
    added = Tokenizer.from_str(plain.to_str())
    added.add_special_tokens(["<|endoftext|>", "<|end|>"])
    # Ordinary text that is looked for as it is, after the special ones.
    added.add_tokens([AddedToken("answer", normalized=True), AddedToken("the answer", normalized=True)])
    made = [
        {"name": "corpus", "text": CORPUS},
        {"name": "plain", "json": plain.to_str()},
        {"name": "added", "json": added.to_str()},
        {"name": "few", "json": few.to_str()},
    ]
    for i, text in enumerate(TEXTS + random_texts()):
        for name, one in (("plain", plain), ("added", added)):
            assert one.decode(one.encode(text).ids, skip_special_tokens=False) == text, text
            made.append({"name": f"text {i}", "with": name, "text": text, "ids": one.encode(text).ids})
    return finish(FILE, made, 0.0)


if __name__ == "__main__":
    sys.exit(main())
