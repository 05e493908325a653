"""Text that is little to send and much to parse as Markdown."""

from random import Random
from typing import Final

__all__ = ["BEYOND", "END", "fuzzed"]

END: Final = "The end of it."

_MANY: Final = 20_000


def _around(begin: str, end: str, count: int = _MANY) -> str:
    return begin * count + "a" + end * count


# Beyond what the page parses, each in another way.
BEYOND: Final = {
    "3,000 quotes": ">" * 3_000,
    "6,000 stars around a letter": _around("*", "*", 6_000),
    "quotes": "> " * _MANY,
    "bullets": _around("- ", ""),
    "numbers": _around("1. ", ""),
    "quotes and bullets": _around("> - ", "", 10_000),
    "stairs": "\n".join(f"{' ' * 2 * level}- a" for level in range(250)),
    "footnotes in footnotes": "[^a]: " * 10_000,
    "stars": _around("*", "*"),
    "pairs of stars": _around("**a ", "a** ", 10_000),
    "lines": _around("_", "_"),
    "waves": _around("~", "~"),
    "brackets": _around("[", "]"),
    "links": "[a](" * _MANY,
    "images": _around("![", "](b)", 10_000),
    "references": "[a][b]" * 10_000,
    "backticks": " ".join("`" * length for length in range(400)),
    "code": "`a" * _MANY,
    "tags": "<a>" * _MANY,
    "comments": "a<!--" * _MANY,
    "comments and a long line": "a<!--" * 400 + "a" * 90_000,
    "CDATA": "a<![CDATA[" * 9_000,
    "headings": "[^a]\n\n" + "a\n=\n" * 2_500,
    "paragraphs": "[^a]\n\n" + "a\n\n" * _MANY,
    "items": "[^a]\n\n" + "- a\n" * _MANY,
    "rows": "|a|\n|-|\n" + "|a|\n" * _MANY,
    "tables": "a|-\n" * _MANY,
    "items that are none": "a\n" + "    - *a* *b* *c*\n" * 2_000,
    "words": "word " * 50_000,
}

_PIECES: Final = (
    *("*", "**", "_", "~", "~~", "`", "``", "```", "[", "]", "](b)", "![", "[^a]", "[^a]: ", "[a]: b\n"),
    *("<", "<a>", "</a>", "<!--", "-->", "<?", "<![CDATA[", "<!A ", "<div>", "&", "&amp;"),
    *("|", "|-|", "\n|a|\n|-|\n", "- ", "* ", "+ ", "1. ", "- [ ] ", "> ", "# ", "=", "-", "\n=\n", "\n---\n"),
    *("a", "word ", " ", "    ", "\t", "\n", "\n\n", "  \n", "\\", "$", "$$", "http://a.b/", "www.a.b", "a@b.c"),
    *(".", "(", ")", '"', "'", ":", "!", "\n```\n", "\n~~~\n", "é", "😀", "ש"),
)


def fuzzed(seed: str) -> str:
    """Pieces of Markdown, each repeated, mirrored or mixed, up to 60,000 characters."""
    draw = Random(seed)  # noqa: S311
    length = int(10 ** draw.uniform(2, 4.8))
    text = ""
    while len(text) < length:
        unit = "".join(draw.choices(_PIECES, k=draw.randint(1, 4)))
        count = int(10 ** draw.uniform(0, 4))
        mixed = "".join(draw.choices(_PIECES, k=min(count, 1_000)))
        text += draw.choice((unit * count, _around(unit, unit[::-1], count), mixed)) + draw.choice(("", "\n\n"))
    return text[:length]
