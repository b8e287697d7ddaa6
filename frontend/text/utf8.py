"""Text from bytes that are not UTF-8."""


def is_utf8(text: str) -> bool:
    """Whether the text can be encoded. Python reads other bytes of arguments and input as half surrogate
    pairs, which can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
