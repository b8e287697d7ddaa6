"""The subjects of the invented documents: kinds of things, their attributes, and sentences about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .lexicon import COLOURS, FOODS, HOBBIES, INSTRUMENTS, JOBS, LANGUAGES, MATERIALS, PRODUCTS, Words

COMPANY_ENDINGS = ("Ltd", "Group", "Systems", "Works", "Foods", "Labs")
PLACE_BEGINNINGS = ("Port", "Saint", "New", "Mount", "Lake")


@dataclass(frozen=True)
class Attribute:
    """`e` is the thing, `v` the value. `later` sentences stand only right after one that names the thing."""

    sentences: tuple[str, ...]
    later: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str
    value: Callable[[Words], str]


@dataclass(frozen=True)
class Kind:
    name: Callable[[Words], str]
    attributes: tuple[Attribute, ...]


PERSON = Kind(
    lambda w: w.full_name() if w.chance(0.5) else w.first_name(),
    (
        Attribute(
            ("{e} works as a {v}.", "{e} is a {v}.", "{e} earns a living as a {v}."),
            ("By profession this is a {v}.",),
            ("What is the job of {e}?", "What does {e} work as?", "What is {e}'s profession?"),
            "{e} works as a {v}.",
            lambda w: w.pick(JOBS),
        ),
        Attribute(
            (
                "{e} lives in {v}.",
                "The home of {e} is in {v}.",
                "{e} has a house in {v}.",
                "{e} moved to {v}.",
            ),
            ("The family home is in {v}.",),
            ("Where does {e} live?", "In which city does {e} live?", "Which city is {e}'s home?"),
            "{e} lives in {v}.",
            lambda w: w.city(),
        ),
        Attribute(
            ("{e} was born in {v}.", "{e} came into the world in {v}.", "The year {v} is when {e} was born."),
            ("The year of birth is {v}.",),
            ("When was {e} born?", "In which year was {e} born?", "What is the birth year of {e}?"),
            "{e} was born in {v}.",
            lambda w: w.year(),
        ),
        Attribute(
            ("{e} plays the {v}.", "In the evening {e} plays the {v}.", "{e} is learning the {v}."),
            ("The {v} is played every evening.",),
            ("Which instrument does {e} play?", "What instrument does {e} play?"),
            "{e} plays the {v}.",
            lambda w: w.pick(INSTRUMENTS),
        ),
        Attribute(
            ("{e} enjoys {v}.", "{e} spends the weekends {v}.", "The hobby of {e} is {v}."),
            ("Free days are for {v}.",),
            ("What is the hobby of {e}?", "What does {e} enjoy?", "What is {e}'s hobby?"),
            "{e} enjoys {v}.",
            lambda w: w.pick(HOBBIES),
        ),
        Attribute(
            ("{e} is married to {v}.", "{e} married {v}.", "The spouse of {e} is {v}."),
            ("The wedding with {v} was in spring.",),
            ("Who is {e} married to?", "Who is the spouse of {e}?", "Who did {e} marry?"),
            "{e} is married to {v}.",
            lambda w: w.first_name(),
        ),
        Attribute(
            ("{e} speaks {v}.", "{e} is fluent in {v}.", "{e} learned {v} at school."),
            ("The language spoken at home is {v}.",),
            ("Which language does {e} speak?", "What language does {e} speak?"),
            "{e} speaks {v}.",
            lambda w: w.pick(LANGUAGES),
        ),
        Attribute(
            (
                "{e} likes {v} most of all foods.",
                "The favourite food of {e} is {v}.",
                "{e} eats {v} every week.",
            ),
            ("The favourite meal is {v}.",),
            (
                "What is the favourite food of {e}?",
                "What does {e} like to eat?",
                "What is {e}'s favourite food?",
            ),
            "The favourite food of {e} is {v}.",
            lambda w: w.pick(FOODS),
        ),
    ),
)

COMPANY = Kind(
    lambda w: w.invented() + w.pick(("", *(f" {ending}" for ending in COMPANY_ENDINGS))),
    (
        Attribute(
            ("{e} was founded in {v}.", "{e} started in {v}.", "The company {e} has existed since {v}."),
            ("It was founded in {v}.",),
            ("When was {e} founded?", "In which year was {e} founded?", "In what year did {e} start?"),
            "{e} was founded in {v}.",
            lambda w: w.year(),
        ),
        Attribute(
            ("{e} was founded by {v}.", "{v} founded {e}.", "The founder of {e} is {v}."),
            ("The founder is {v}.",),
            ("Who founded {e}?", "Who is the founder of {e}?", "By whom was {e} founded?"),
            "{e} was founded by {v}.",
            lambda w: w.full_name(),
        ),
        Attribute(
            (
                "{e} has its head office in {v}.",
                "The headquarters of {e} are in {v}.",
                "{e} is based in {v}.",
            ),
            ("Its head office is in {v}.",),
            ("Where is {e} based?", "Where is the head office of {e}?", "In which city is {e} based?"),
            "{e} is based in {v}.",
            lambda w: w.city(),
        ),
        Attribute(
            ("{e} employs {v} people.", "{e} has {v} employees.", "At {e} there are {v} workers."),
            ("It employs {v} people.",),
            (
                "How many people does {e} employ?",
                "How many employees does {e} have?",
                "How many people work at {e}?",
            ),
            "{e} employs {v} people.",
            lambda w: w.number(),
        ),
        Attribute(
            ("{e} is led by {v}.", "The director of {e} is {v}.", "{v} is the director of {e}."),
            ("Its director is {v}.",),
            ("Who leads {e}?", "Who is the director of {e}?", "Who runs {e}?"),
            "{e} is led by {v}.",
            lambda w: w.full_name(),
        ),
        Attribute(
            ("{e} makes goods from {v}.", "{e} works mostly with {v}.", "The main material at {e} is {v}."),
            ("It works mostly with {v}.",),
            ("Which material does {e} work with?", "What material does {e} use?"),
            "{e} works with {v}.",
            lambda w: w.pick(MATERIALS),
        ),
    ),
)

PRODUCT = Kind(
    lambda w: f"the {w.invented()} {w.pick(PRODUCTS)}",
    (
        Attribute(
            ("{e} costs {v} euros.", "The price of {e} is {v} euros.", "You can buy {e} for {v} euros."),
            ("It costs {v} euros.",),
            ("How much does {e} cost?", "What is the price of {e}?", "What does {e} cost?"),
            "{e} costs {v} euros.",
            lambda w: w.number(),
        ),
        Attribute(
            (
                "{e} weighs {v} grams.",
                "The weight of {e} is {v} grams.",
                "On the scales {e} shows {v} grams.",
            ),
            ("It weighs {v} grams.",),
            ("How much does {e} weigh?", "What is the weight of {e}?", "How heavy is {e}?"),
            "{e} weighs {v} grams.",
            lambda w: w.number(),
        ),
        Attribute(
            ("{e} is {v}.", "The colour of {e} is {v}.", "Shops sell {e} in {v}."),
            ("Its colour is {v}.",),
            ("What colour is {e}?", "What is the colour of {e}?", "Which colour does {e} have?"),
            "{e} is {v}.",
            lambda w: w.pick(COLOURS),
        ),
        Attribute(
            ("{e} is made by {v}.", "{v} makes {e}.", "The maker of {e} is {v}."),
            ("Its maker is {v}.",),
            ("Who makes {e}?", "Who is the maker of {e}?", "Which company makes {e}?"),
            "{e} is made by {v}.",
            lambda w: w.invented(),
        ),
        Attribute(
            ("{e} was designed by {v}.", "{v} designed {e}.", "The designer of {e} is {v}."),
            ("Its designer is {v}.",),
            ("Who designed {e}?", "Who is the designer of {e}?"),
            "{e} was designed by {v}.",
            lambda w: w.full_name(),
        ),
        Attribute(
            ("{e} is made of {v}.", "The body of {e} is {v}.", "The material of {e} is {v}."),
            ("It is made of {v}.",),
            ("What is {e} made of?", "Which material is {e} made of?", "What is the material of {e}?"),
            "{e} is made of {v}.",
            lambda w: w.pick(MATERIALS),
        ),
        Attribute(
            (
                "{e} has the model number {v}.",
                "The model number of {e} is {v}.",
                "On {e} stands the number {v}.",
            ),
            ("Its model number is {v}.",),
            ("What is the model number of {e}?", "Which model number does {e} have?"),
            "The model number of {e} is {v}.",
            lambda w: w.code(),
        ),
    ),
)

PLACE = Kind(
    lambda w: w.invented() if w.chance(0.6) else f"{w.pick(PLACE_BEGINNINGS)} {w.invented()}",
    (
        Attribute(
            ("{e} has {v} inhabitants.", "About {v} people live in {e}.", "The population of {e} is {v}."),
            ("It has {v} inhabitants.",),
            (
                "How many people live in {e}?",
                "What is the population of {e}?",
                "How many inhabitants does {e} have?",
            ),
            "{e} has {v} inhabitants.",
            lambda w: w.number(),
        ),
        Attribute(
            (
                "{e} lies on the river {v}.",
                "The river {v} flows through {e}.",
                "The river in {e} is called {v}.",
            ),
            ("The river there is called {v}.",),
            (
                "Which river flows through {e}?",
                "On which river does {e} lie?",
                "What is the river in {e} called?",
            ),
            "The river in {e} is called {v}.",
            lambda w: w.invented(),
        ),
        Attribute(
            ("The mayor of {e} is {v}.", "{v} is the mayor of {e}.", "In {e} the mayor is {v}."),
            ("The mayor there is {v}.",),
            ("Who is the mayor of {e}?", "What is the name of the mayor of {e}?"),
            "The mayor of {e} is {v}.",
            lambda w: w.full_name(),
        ),
        Attribute(
            ("{e} is famous for its {v}.", "Visitors come to {e} for the {v}.", "{e} is known for its {v}."),
            ("It is famous for its {v}.",),
            ("What is {e} famous for?", "What is {e} known for?", "Why do visitors come to {e}?"),
            "{e} is famous for its {v}.",
            lambda w: w.pick(FOODS),
        ),
        Attribute(
            (
                "The bridge in {e} was built in {v}.",
                "{e} got its bridge in {v}.",
                "In {v} the bridge of {e} opened.",
            ),
            ("Its bridge was built in {v}.",),
            ("When was the bridge in {e} built?", "In which year did {e} get its bridge?"),
            "The bridge in {e} was built in {v}.",
            lambda w: w.year(),
        ),
        Attribute(
            (
                "{e} holds its market on {v}.",
                "The market of {e} is on {v}.",
                "On {v} there is a market in {e}.",
            ),
            ("The market is on {v}.",),
            (
                "When is the market in {e}?",
                "On which date is the market of {e}?",
                "On what date is {e}'s market?",
            ),
            "The market in {e} is on {v}.",
            lambda w: w.date(),
        ),
    ),
)

KINDS = (PERSON, COMPANY, PRODUCT, PLACE)

FILLERS = (
    "The winter was long and the roads were closed for weeks.",
    "Many letters about this have been lost.",
    "Some of this was printed in the local newspaper.",
    "Nobody knows exactly how it began.",
    "The weather that year was mild.",
    "There are plans to write a book about it.",
    "Opinions about this differ.",
    "Every summer people talk about it again.",
    "The archive keeps a copy of all the papers.",
    "It was a quiet time for most families.",
    "More about this can be found in the library.",
    "The following is taken from the official records.",
)
