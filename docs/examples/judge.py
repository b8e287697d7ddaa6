"""A judge: an essay gets a grade for each point of view, and a verdict that sees all grades."""

from __future__ import annotations

import arbora as ab
from example_options import connected, parser, print_cached_share

POINTS = {
    "style": "Are the sentences short and clear?",
    "facts": "Is each statement true?",
    "order": "Does each sentence follow from the one before?",
    "aim": "Does it tell the reader what to do?",
}
GRADES = ["poor", "fair", "good"]
ESSAYS = [
    "Bicycles are faster than cars in a city. They need little space. So cities should build paths for them.",
    "The moon is made of cheese, as everybody knows, and cheese is heavy. Buy our telescope.",
    "Bread needs flour, water, salt and time. Most recipes are short of time. Let the dough rest overnight.",
]


@ab.program
def judge(s: ab.State, essay: str) -> dict[str, str]:
    """The grade of each point. `s["verdict"]` is the grade of the whole."""
    s += ab.system(f"You judge essays. A grade is one of: {', '.join(GRADES)}.")
    s += ab.user(essay)
    s += ab.assistant("I have read it.")
    points = s.fork(len(POINTS))
    for fork, question in zip(points, POINTS.values(), strict=True):
        fork += ab.user(question)
        fork += ab.assistant("Its grade is ", ab.select("grade", GRADES))
    grades = dict(zip(POINTS, points["grade"], strict=True))
    s += ab.user(f"The grades are {grades}. And the whole essay?")
    s += ab.assistant("Its grade is ", ab.select("verdict", GRADES))
    return grades


if __name__ == "__main__":
    connected(parser(__doc__))
    states = judge.run_batch([{"essay": essay} for essay in ESSAYS])
    for essay, state in zip(ESSAYS, states, strict=True):
        best, second = sorted(state.scores("verdict").values(), reverse=True)[:2]
        print(f"{state['verdict']} by {best - second:.2f}: {essay[:60]}… {state.result}")
    print_cached_share(states)
