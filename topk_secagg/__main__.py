"""`python -m topk_secagg` is the command `topk-secagg`.

It is the only module of the library that knows the command line, and only when it is run.
"""

from importlib import import_module

if __name__ == "__main__":
    # (by its installed name, under which a type checker does not find the folder cli/)
    import_module("topk_secagg_cli.__main__").main()
