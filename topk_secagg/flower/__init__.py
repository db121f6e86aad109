"""Rounds over Flower: a mod for the nodes and a strategy for the server.

    app = ClientApp(mods=[topk_secagg_mod])
    strategy = TopKSecAgg(FedAvg(), rank=2)

Flower moves the files of a round, and nothing else: the steps, ledgers, seals and signatures are
those of every other round. docs/flower.md has what each message carries. This package is optional
(`pip install topk-secagg[flower]`), and the only one that imports Flower.
"""

from .client import topk_secagg_mod
from .server import TopKSecAgg

__all__ = ["TopKSecAgg", "topk_secagg_mod"]
