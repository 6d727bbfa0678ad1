"""The planner: measured lines, cables and links → the topology, spans and carriers of a round, and the seconds it should take.

Pure and deterministic: the same measurements give the same plan on every peer, in whatever order they came. `planner.py` is
the entry; each topology drafts itself in a file of its own, `cost.py` predicts what a draft takes. docs/decisions/0012.
"""
