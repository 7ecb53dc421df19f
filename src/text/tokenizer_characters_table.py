#!/usr/bin/env python3
"""Writes tokenizer_characters_table.cc: what Hugging Face `tokenizers` takes for letters, numbers and marks.

Asked of the library itself, character by character, because its two Unicode tables are of different ages: the
regular expressions know Unicode 16, the normaliser Unicode 9, and neither is what a distribution's PCRE2 or
utf8proc knows. Needs the packages `tokenizers` 0.22 and a Python whose Unicode is 14 (3.11).

    python3 tokenizer_characters_table.py > tokenizer_characters_table.cc
"""

import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def matching(pattern):
    split = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    found = set()
    for i in range(0, len(ALL), 4096):
        chunk = ALL[i : i + 4096]
        left = set()
        for piece, _ in split.pre_tokenize_str("".join(map(chr, chunk))):
            left.update(map(ord, piece))
        found.update(c for c in chunk if c not in left)
    return found


def not_inert(nfc):
    """Characters that NFC changes, moves, or joins to the one before."""
    found = set()
    for c in ALL:
        char = chr(c)
        # U+0334 has the lowest combining class, U+0345 the highest: any other class is moved past one of them.
        moved = any(nfc("A" + text) != "A" + text for text in (char + "\u0334", "\u0345" + char))
        if moved or nfc(char) != char:
            found.add(c)
        whole = unicodedata.normalize("NFD", char)
        if len(whole) > 1 and nfc(whole) != whole:
            found.update(map(ord, whole[1:]))
    return found


def ranges(characters):
    out = []
    for c in sorted(characters):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def emit(name, characters):
    print(f"\nconst CharacterRange {name}_data[] = {{")
    line = "   "
    for first, last in ranges(characters):
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def main():
    letters, numbers = matching(r"\p{L}"), matching(r"\p{N}")
    tables = {
        "letter_ranges": letters,
        "number_ranges": numbers,
        "not_inert_ranges": not_inert(normalizers.NFC().normalize_str),
        "new_letter_ranges": {c for c in letters if unicodedata.category(chr(c))[0] != "L"},
        "new_number_ranges": {c for c in numbers if unicodedata.category(chr(c))[0] != "N"},
    }
    print("// Written by tokenizer_characters_table.py; not edited by hand.")
    print("// clang-format off")
    print('#include "text/tokenizer_characters.h"')
    print("\nnamespace kinora::tokenizer {\nnamespace {")
    for name, characters in tables.items():
        emit(name, characters)
    print("\n}  // namespace\n")
    for name in tables:
        print(f"std::span<const CharacterRange> {name}() {{ return {name}_data; }}")
    print("\n}  // namespace kinora::tokenizer")


main()
