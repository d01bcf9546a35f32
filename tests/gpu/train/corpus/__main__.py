import sys

from corpus import KINDS
from corpus.run import Run


def main():
    kind, seconds = sys.argv[1], float(sys.argv[2])
    run = Run(kind, seconds)
    try:
        KINDS[kind](run)
    except BaseException as why:
        run.truth["died"] = type(why).__name__
        raise
    finally:
        run.end()


# Workers of a loader that are spawned import this module again.
if __name__ == "__main__":
    main()
