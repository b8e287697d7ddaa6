"""Self-consistency: several chains of reasoning are sampled, and the most frequent answer wins."""

from __future__ import annotations

from collections import Counter

import arbora as ab
from example_options import connected, parser, print_cached_share

QUESTION = (
    "Ann has 5 boxes with 6 eggs each. She breaks 4 eggs and sells half of the rest. How many are left?"
)


@ab.program
def vote(s: ab.State, question: str, chains: int) -> Counter[int]:
    """The answers with their numbers of votes."""
    s += ab.system("You solve riddles. Think in a few sentences, then give a number.")
    s += ab.user(question)
    forks = s.fork(chains)
    for seed, fork in enumerate(forks):
        fork += ab.assistant(ab.gen("thoughts", max_tokens=48, temperature=0.8, seed=seed))
        fork += ab.user("Give the number alone.")
        fork += ab.assistant(ab.gen("answer", regex="[1-9][0-9]{0,2}", temperature=0))
    return Counter(int(answer) for answer in forks["answer"])


if __name__ == "__main__":
    options = parser(__doc__)
    options.add_argument("--question", default=QUESTION)
    options.add_argument("--chains", type=int, default=8)
    values = connected(options)
    state = vote.run(values.question, values.chains)
    for number, votes in state.result.most_common():
        print(f"{number}: {votes} of {values.chains} votes")
    print_cached_share([state])
