"""Makes tokenizer.json from the vocabulary in a GGUF file."""

from __future__ import annotations

import reprlib
from enum import IntEnum
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ....runtime.errors import ConfigError
from ....runtime.gguf_file import GgufFile

PREFIX = "tokenizer.ggml."
ROLES = {
    "bos": "bos_token_id",
    "eos": "eos_token_id",
    "unk": "unknown_token_id",
    "pad": "padding_token_id",
}
"""The metadata key of each special token's id."""
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "<end_of_turn>",
)
"""Control tokens that end a reply in every model. Files often name only one of a model's end tokens."""
MAX_MERGED = 512
"""Characters of a SentencePiece token for which merges are sought, in time that grows with the square of its
length. Longer tokens, which no model has, are never produced."""

_END_OF_WORD = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + _LETTERS + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END_OF_WORD
_QWEN2 = _CONTRACTIONS + _LETTERS + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END_OF_WORD
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _END_OF_WORD
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END_OF_WORD
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END_OF_WORD
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


class _Words(NamedTuple):
    """How text is split into words before its bytes are merged: by each pattern in turn."""

    patterns: tuple[str, ...]
    composed: bool = False
    """whether text is first brought into Unicode's form NFC"""
    whole_words: bool = False
    """whether a word that is a token is taken whole instead of being merged from bytes"""
    adds_bos: bool = False
    """whether texts begin with the BOS token, unless the file says otherwise"""


_LLAMA3_WORDS = _Words((_LLAMA3,), whole_words=True, adds_bos=True)
_QWEN2_WORDS = _Words((_QWEN2,), composed=True)
_GPT2_WORDS = _Words((_GPT2,))
WORDS = {
    "llama-bpe": _LLAMA3_WORDS,
    "llama3": _LLAMA3_WORDS,
    "llama-v3": _LLAMA3_WORDS,
    "falcon3": _LLAMA3_WORDS,
    "lfm2": _LLAMA3_WORDS,
    "smaug-bpe": _Words((_LLAMA3,)),
    "dbrx": _Words((_LLAMA3,)),
    "gpt-4o": _Words((_GPT4O,)),
    "llama4": _Words((_GPT4O,)),
    "qwen2": _QWEN2_WORDS,
    "deepseek-r1-qwen": _QWEN2_WORDS,
    "megrez": _QWEN2_WORDS,
    "qwen35": _Words((_QWEN35,), composed=True),
    "gpt-2": _GPT2_WORDS,
    "olmo": _GPT2_WORDS,
    "refact": _Words((r"\p{N}", _GPT2)),
    "smollm": _Words((r"\p{N}", _GPT2)),
    "tekken": _Words((_TEKKEN,), whole_words=True, adds_bos=True),
    "default": _Words(_DEFAULT),
}
"""The rules of splitting text into words, by `tokenizer.ggml.pre`."""


class _Kind(IntEnum):
    """The kind of a token in `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class Vocabulary:
    """Reads and checks a file's tokenizer keys."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self.model = str(self._value("model"))
        if self.model not in ("gpt2", "llama"):
            raise self._wrong(
                "model",
                f"{reprlib.repr(self.model)} is not supported. Supported: gpt2 (BPE of bytes), llama "
                "(SentencePiece)",
            )
        self.tokens: list[str] = self._list("tokens", str)
        if not self.tokens:
            raise self._wrong("tokens", "is empty")
        kinds = "token_type"
        self.kinds: list[int] = self._list(kinds, int) if self._has(kinds) else [1] * len(self.tokens)
        if len(self.kinds) != len(self.tokens):
            raise self._wrong(kinds, f"has {len(self.kinds)} entries for {len(self.tokens)} tokens")

    def backend(self) -> Tokenizer:
        """The tokenizer, which adds no special tokens at the start or the end."""
        backend = self._byte_level() if self.model == "gpt2" else self._sentencepiece()
        added = [
            AddedToken(token, special=kind == _Kind.CONTROL, normalized=False)
            for token, kind in zip(self.tokens, self.kinds, strict=True)
            if kind in (_Kind.CONTROL, _Kind.USER_DEFINED, _Kind.UNKNOWN)
        ]
        backend.add_tokens(added)
        starts, ends = self._ids_around()
        if starts or ends:
            # The template names tokens by their ids, because their texts could be mistaken for its syntax.
            template = [*map(str, starts), "$A:0", *map(str, ends)]
            special = [
                {"id": str(index), "ids": [index], "tokens": [self.tokens[index]]}
                for index in {*starts, *ends}
            ]
            backend.post_processor = processors.TemplateProcessing(
                single=template, pair=[*template, "$B:1"], special_tokens=special
            )
        return backend

    def config(self) -> dict[str, Any]:
        """The content of tokenizer_config.json, with the chat templates."""
        ids = {role: self._id(key) for role, key in ROLES.items()}
        config: dict[str, Any] = {
            f"{role}_token": self.tokens[index] for role, index in ids.items() if index is not None
        }
        return config | self._templates()

    def end_ids(self) -> list[int]:
        """The tokens that end a reply. The end-of-sequence token comes first."""
        named = [index for key in END_KEYS if (index := self._id(key)) is not None]
        known = [
            index
            for index, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind == _Kind.CONTROL and token in END_TEXTS
        ]
        return list(dict.fromkeys([*named, *known]))

    def _templates(self) -> dict[str, Any]:
        metadata = self._file.metadata
        sources = {"default": metadata.get("tokenizer.chat_template")}
        names = metadata.get("tokenizer.chat_templates")
        for name in names if isinstance(names, list) else []:
            sources[str(name)] = metadata.get(f"tokenizer.chat_template.{name}")
        found = [{"name": name, "template": text} for name, text in sources.items() if isinstance(text, str)]
        return {"chat_template": found} if found else {}

    def _byte_level(self) -> Tokenizer:
        name = self._pre()
        if name not in WORDS:
            raise self._wrong(
                "pre",
                f"{reprlib.repr(name)} is not supported. Supported: {', '.join(WORDS)}. Otherwise put the "
                "file into a directory with the original model's config.json and tokenizer.json",
            )
        words = WORDS[name]
        merges = [_pair(merge) for merge in self._list("merges", str)]
        vocab = {token: index for index, token in enumerate(self.tokens)}
        try:
            model = models.BPE(vocab, merges, ignore_merges=words.whole_words)
        except Exception as error:  # the library raises nothing more specific
            raise self._wrong("merges", f"don't fit the tokens: {error}") from error
        backend = Tokenizer(model)
        if words.composed:
            backend.normalizer = normalizers.NFC()
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in words.patterns]
        whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, whole])
        backend.decoder = decoders.ByteLevel()
        return backend

    def _sentencepiece(self) -> Tokenizer:
        vocab = {token: index for index, token in enumerate(self.tokens)}
        unknown = self._id("unknown_token_id")
        model = models.BPE(
            vocab,
            self._merges_of_scores(vocab),
            unk_token=None if unknown is None else self.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
        backend = Tokenizer(model)
        spaced = self._file.metadata.get(f"{PREFIX}add_space_prefix", True)
        prepend = [normalizers.Prepend("▁")] if spaced else []
        backend.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
        strip = [decoders.Strip(" ", 1, 0)] if spaced else []
        spaces = decoders.Replace("▁", " ")
        backend.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), *strip])
        return backend

    def _merges_of_scores(self, vocab: dict[str, int]) -> list[tuple[str, str]]:
        """The merges of a SentencePiece vocabulary, which merges the two neighbours whose union has the best
        score. So each way to cut a token into two tokens becomes a merge, in the order of the scores."""
        scores: list[float] = self._list("scores", float)
        if len(scores) != len(self.tokens):
            raise self._wrong("scores", f"has {len(scores)} entries for {len(self.tokens)} tokens")
        cuts = [
            (-scores[index], vocab[token[:at]], vocab[token[at:]], token[:at], token[at:])
            for token, index in vocab.items()
            if self.kinds[index] == _Kind.NORMAL and len(token) <= MAX_MERGED
            for at in range(1, len(token))
            if token[:at] in vocab and token[at:] in vocab
        ]
        return [(left, right) for _, _, _, left, right in sorted(cuts)]

    def _ids_around(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer adds before and after each text."""
        usual = self.model == "llama" or WORDS[self._pre()].adds_bos
        bos = self._id("bos_token_id") if self._flag("add_bos_token", usual) else None
        eos = self._id("eos_token_id") if self._flag("add_eos_token", False) else None
        return [] if bos is None else [bos], [] if eos is None else [eos]

    def _pre(self) -> str:
        return str(self._file.metadata.get(f"{PREFIX}pre", "default"))

    def _flag(self, key: str, default: bool) -> bool:
        return bool(self._file.metadata.get(PREFIX + key, default))

    def _has(self, key: str) -> bool:
        return PREFIX + key in self._file.metadata

    def _id(self, key: str) -> int | None:
        index = self._file.metadata.get(PREFIX + key)
        if index is None:
            return None
        if not isinstance(index, int) or not 0 <= index < len(self.tokens):
            raise self._wrong(key, f"{reprlib.repr(index)} is not one of the {len(self.tokens)} tokens")
        return index

    def _value(self, key: str) -> object:
        if not self._has(key):
            raise self._wrong(
                key,
                "is missing, so the file has no tokenizer. Put the file into a directory with the model's "
                "config.json and tokenizer.json, and give the directory as MODEL",
            )
        return self._file.metadata[PREFIX + key]

    def _list(self, key: str, kind: type) -> list[Any]:
        value = self._value(key)
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self._wrong(key, f"should be a list of {kind.__name__}")
        return value

    def _wrong(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self._file.path}: {PREFIX}{key} {what}.")


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
