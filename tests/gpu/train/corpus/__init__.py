"""Small programs, each a kind of job as users run them: python3 -m corpus KIND SECONDS.

corpus.toml lists the kinds with what a report must say about each. A kind is a function of some lines on the
shared model; `run.Run` measures by the program's own clock what was planted.
"""

KINDS = {}


def kind(program):
    """Registers a function under its name with dashes."""
    KINDS[program.__name__.replace("_", "-")] = program
    return program


from corpus import (  # noqa: F401
    blind, compute, eighth, eleventh, ends, fourteenth, fresh, frozen, further, inference, later, ninth, seventh, several, tenth,
    thirteenth, twelfth, unseen, varied, waits,
)
