"""Splits Rust text into code, comments and strings, so that a rename can be limited to one of them."""
import re

TOKEN = re.compile(r"""
    (?P<comment>//[^\n]*|/\*.*?\*/)
  | (?P<raw>\bb?r(?P<hashes>\#*)".*?"(?P=hashes))
  | (?P<string>b?"(?:\\.|[^"\\])*")
  | (?P<char>b?'(?:\\(?:[nrt0'"\\]|x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]+\})|[^'\\\n])')
""", re.X | re.S)


def pieces(text):
    """Yields (kind, text) with kind in code, comment, string; together they are the whole text."""
    at = 0
    for match in TOKEN.finditer(text):
        if match.start() > at:
            yield "code", text[at:match.start()]
        kind = {"comment": "comment", "raw": "string", "string": "string", "char": "code"}[match.lastgroup if match.lastgroup != "hashes" else "raw"]
        yield kind, match[0]
        at = match.end()
    if at < len(text):
        yield "code", text[at:]


def map_pieces(text, kinds, change):
    return "".join(change(part) if kind in kinds else part for kind, part in pieces(text))


def map_backticks(text, change):
    """Applies `change` to what stands between backticks in comments (or in all of a Markdown text)."""
    return re.sub(r"`[^`\n]+`", lambda match: change(match[0]), text)
