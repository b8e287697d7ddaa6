"""The parts of chats without facts: greetings, questions about the model, plain repetition."""

from __future__ import annotations

from .conversation import Conversation, Turn
from .lexicon import Words

SELF = "I am Arbora's small built-in demonstration model."
ABILITIES = (
    "I can remember what you tell me in this chat, "
    "answer questions about a text, and fill in JSON from a sentence."
)
IGNORANCE = "I am a very small model, so I do not know that."
SMALL_TALK = (
    (
        ("Hello!", "Hi", "Hi there!", "Hey", "Good morning!", "Good evening.", "Hello there"),
        "Hello! How can I help you?",
    ),
    (("How are you?", "How are you today?", "How is it going?", "Are you well?"), "I am fine, thank you."),
    (
        ("Who are you?", "What are you?", "What is your name?", "Introduce yourself.", "What model are you?"),
        SELF,
    ),
    (
        (
            "Who made you?",
            "Where do you come from?",
            "Are you a human?",
            "Are you ChatGPT?",
            "Are you a robot?",
        ),
        SELF,
    ),
    (
        ("What can you do?", "How can you help me?", "What are you good at?", "Help", "What do you do?"),
        ABILITIES,
    ),
    (("Thanks!", "Thank you.", "Thank you very much!", "Thanks a lot", "Great, thanks."), "You are welcome!"),
    (("Bye!", "Goodbye.", "See you later!", "Good night.", "I have to go now."), "Goodbye!"),
    (
        ("It is raining today.", "The sun is shining.", "What a day!", "I slept well.", "I am a bit tired."),
        "I see.",
    ),
    (("OK.", "Okay", "I see.", "Cool!", "Nice.", "Good.", "Interesting!"), "Is there anything else?"),
    (
        ("Tell me a joke.", "Make me laugh.", "Do you know a joke?"),
        "Why did the tree go to school? To branch out.",
    ),
    (
        (
            "What is the capital of France?",
            "Who wrote Hamlet?",
            "What will the weather be tomorrow?",
            "What is the meaning of life?",
            "Who won the game yesterday?",
            "How do I build a house?",
            "Write a poem.",
            "Why is the sky blue?",
        ),
        IGNORANCE,
    ),
)
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a friendly assistant. Answer briefly.",
    "You are Arbora, a small demonstration model.",
    "Be kind and short.",
    "You are a helpful AI assistant that remembers what the user says.",
)


def make_small_talk(words: Words) -> Conversation:
    lower = words.chance(0.2)
    turns = tuple(spoken(words, small_talk_turn(words), lower) for _ in range(words.between(1, 4)))
    return Conversation("talk", turns, words.pick(SYSTEMS) if words.chance(0.4) else None)


def make_echo(words: Words) -> Conversation:
    """Repeat after me: the plainest form of copying, which the other tasks build upon."""
    turns = []
    for _ in range(words.between(1, 4)):
        makers = (words.invented, words.full_name, words.number, words.code, words.date)
        items = [words.pick(makers)() for _ in range(words.between(1, 6))]
        said = ", ".join(items)
        turns.append(
            Turn(words.pick(("Repeat: {}", "Say {}", "Repeat after me: {}")).format(said), said, said)
        )
    return Conversation("echo", tuple(turns))


def small_talk_turn(words: Words) -> Turn:
    said, reply = words.pick(SMALL_TALK)
    return Turn(words.pick(said), reply)


def spoken(words: Words, turn: Turn, lower: bool) -> Turn:
    """How people type: sometimes all lower case, sometimes without the last full stop or question mark."""
    user = turn.user.lower() if lower else turn.user
    if words.chance(0.15):
        user = user.rstrip(".?!")
    return Turn(user, turn.reply, turn.fact)
