"""How the data of buyers and sellers shows outside the tables and ledgers (domain: secrecy). Pure.

Belongs here: masking of one value, and of every such value inside a text that somebody else wrote; control characters
and markup in such a text. Does not: deciding what is shown where.

All that others wrote and people read goes through `mask` or `mask_text`, which leave nothing that a terminal, a log or
a page would act on. Tables, calls and the ledger have it as it was written.
"""

import hashlib
import re
from collections.abc import Iterable

_SHOWN = 4
_LONGEST_VALUE = 120
_ARN = re.compile(r"(?:arn:aws[a-zA-Z-]*|\baws[a-zA-Z-]*:license-manager):(?:[^\s\"',;)\]}]|,(?=\w))+")
"""Also without its `arn:`, as some lifecycle events have it. A comma may be part of it."""
_ACCOUNT = re.compile(r"(?<![0-9])[0-9]{12}(?![0-9])")
"""Also with letters beside it: what others name may be glued to one."""
_USER = re.compile(r"(?<=://)(?:[^\s/?#]*|[^\s/]*:\S*)@")
"""Who calls, and with which password, in a URL: up to its last `@`, for that and a `/` may be part of a password."""
_MARKUP = re.compile(r"[\\`\[\]<|]")
"""Of Markdown: code, links, pictures, HTML and the cells of a table."""
_MASKED_LICENSE = re.compile(r"(?i)\blicen[cs]es?[ :=]{1,2}(\*{4}[^\s,;:.)\]]{0,4})")


def mask(value: str | None) -> str:
    """Return `****` and the last four characters; `****` alone up to four; `<none>` if empty."""
    if not value:
        return "<none>"
    return "****" + (printable(value[-_SHOWN:]) if len(value) > _SHOWN else "")


def printable(text: str) -> str:
    r"""Escape what is not meant to be seen: `\x1b` for ESC, `\n` for a line's end, `\u202e` for a change of direction.

    Control and format characters (bidirectional, of no width), surrogates, line and paragraph separators, blanks other
    than the ordinary one, and what Unicode has not assigned. A printable text stays as it is, so this may be done
    twice.
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def digest(*values: str) -> str:
    """Eight hexadecimal digits that tell two masked values apart."""
    return hashlib.blake2b("\x1f".join(values).encode(), digest_size=4).hexdigest()


def mask_text(text: str) -> str:
    """Return the text with every license ARN, twelve-digit account id, and user of a URL in it masked, in one printable
    line; for messages of others and for what settings say.
    """
    # Escaped last: an escape that ends in digits would run into an account's.
    return printable(_ACCOUNT.sub(lambda m: mask(m[0]), _ARN.sub(lambda m: mask(m[0]), _USER.sub("****@", text))))


def mask_lines(lines: Iterable[str]) -> str:
    """Return the lines as one text, each of them masked."""
    return "\n".join(mask_text(line) for line in lines)


def markdown_list(lines: Iterable[str]) -> str:
    """Return a list in Markdown with a point for each text; nothing in a text is taken for a link, HTML, code or a
    cell.
    """
    return "\n".join(f"- {_MARKUP.sub(_literal, printable(line))}" for line in lines)


def _literal(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def mask_names(text: str, names: Iterable[str]) -> str:
    """Return the text of others with these names in it masked as well, wherever they stand as words of their own: an
    account of another length, a customer's identifier.
    """
    known = sorted({name for name in names if name}, key=len, reverse=True)
    if known:
        words = re.compile(rf"(?<![0-9A-Za-z])(?:{'|'.join(map(re.escape, known))})(?![0-9A-Za-z])")
        text = words.sub(lambda m: mask(m[0]), text)
    return mask_text(text)


def license_in(text: str) -> str | None:
    """Return the first license that a text names, masked; one that is masked already stays as it is. None if it names
    none.
    """
    arns = (match[0] for match in _ARN.finditer(text))
    arn = next((arn for arn in arns if "license" in arn), None)
    if arn is not None:
        return mask(arn.rstrip(".:"))
    masked = _MASKED_LICENSE.search(text)
    return masked[1] if masked else None


def shown_value(text: str) -> str:
    """Quote a setting's or a file's value for a message: masked, and cut after 120 characters."""
    shown = mask_text(text)
    return f"'{shown}'" if len(shown) <= _LONGEST_VALUE else f"'{shown[:_LONGEST_VALUE]}…'"
