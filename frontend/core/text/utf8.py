"""Finds out whether text was read from bytes that are not UTF-8."""


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode the text. It can't if Python made the text from other bytes: each of those
    became half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
