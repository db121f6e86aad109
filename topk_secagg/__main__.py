"""`python -m topk_secagg` is the command `topk-secagg`.

It is the only module of the library that knows the command line, and only when it is run.
"""

if __name__ == "__main__":
    from topk_secagg_cli.__main__ import main

    main()
