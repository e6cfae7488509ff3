"""The program dtplan of the wheel, under the name that pip puts on PATH."""

import os
import pathlib
import sys


def main() -> None:
    """Becomes the program: its words, its streams, its exit status."""
    program = pathlib.Path(__file__).resolve().parent / "bin" / "dtplan"
    try:
        os.execv(program, ["dtplan", *sys.argv[1:]])
    except OSError as error:
        print(f"dtplan: {program}: {error.strerror}; install the wheel again", file=sys.stderr)
        sys.exit(3)
