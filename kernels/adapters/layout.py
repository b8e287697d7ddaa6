"""What the kernels of adapters read."""

BLOCK_ROWS = 16
"""maximal rows of a block, which have the same adapter"""
RANKS = 8
"""rows of A that a thread of a CPU multiplies at a time"""
NO_ADAPTER = -1
RANK, DOWN, UP, SCALES, FIELDS = range(5)
"""An adapter's entry for a product, int64 [FIELDS]. RANK is that of each part; 0: the adapter leaves the
product as it is. The others are addresses: DOWN [parts · rank, inputs] has the matrices A of all parts, UP
[rank, outputs] the transposed matrices B side by side, both in the dtype of activations, with zeros where a
part has a lower rank. SCALES, float32 [parts], has 0 for a part that the adapter leaves as it is."""
