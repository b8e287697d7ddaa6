"""Token masks: which tokens of the vocabulary each state of an automaton allows.

1. `token_trie` turns the vocabulary into two tries over bytes: quote-free tokens (no quote, at most 32 bytes)
   and all others. Both are walked from automaton states.
2. `configurations` numbers what a walk can be at: a state and what the walk has pushed on the stack. The step
   from each configuration is computed once.
3. `walks` holds the tables and steps of every walk. A walk sorts tokens into *allowed*, *undecided* (the
   stack below the walk's start decides) and *openers* (allowed, but they need free places on the stack).
4. `edge_walks` walks once along each entry of the transition table; most entries are shared by many states.
5. A state that allows too many quote-free tokens to list is *costly*: inside strings that is most of the
   vocabulary. `state_fingerprints` finds costly states that treat quote-free tokens alike, also across
   automata; `quote_free` keeps one mask for each such kind.
6. `state_lists` puts the token lists of each state together, `lists` keeps equal lists once, and
   `list_sharing` replaces short undecided lists by longer ones.
`stack` runs these steps for one automaton and makes its `AutomatonTables`.
"""
