"""python -m topk_secagg.algebra.compile: compile the kernels now, not when they are first used.

For administrators and images: the machine code goes beside the source if this account may write
there, where all users of the installation find it, or else to the account's own cache.
"""

from __future__ import annotations

from . import library


def main() -> None:
    """Compile if there is no code for this processor yet, and say where it is."""
    kept = library.find()
    if kept is not None:
        print(f"the kernels are compiled already: {kept[0]}")
        return
    path = library.keep(library.compile_kernels(), library.folders())
    if path is None:
        tried = ", ".join(str(folder.path) for folder in library.folders())
        raise SystemExit(f"the compiled kernels cannot be kept: nobody may write to {tried}")
    print(f"compiled the kernels: {path}")


if __name__ == "__main__":
    main()
