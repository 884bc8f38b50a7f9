"""Text from outside, made safe to print.

Keys come from whoever can reach a counted URL: they may hold escape sequences that rewrite a
terminal's screen. What a spreadsheet makes of them is :mod:`countersink.reads.layout`'s matter.
"""

import unicodedata


def printable(text: str) -> str:
    """``text`` with control, format and other invisible characters as ``\\x1b`` or ``\\u202e``.

    Backslashes are doubled where one is needed to tell an escape from the same letters as they
    are, so that two different keys never look alike because of this.
    """
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character == "\\":
        return "\\\\"
    # Cc control, Cf format (bidirectional overrides, zero width), Cs surrogate, Co private,
    # Cn unassigned, Zl and Zp line and paragraph separators.
    if unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
