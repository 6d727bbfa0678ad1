"""The demonstration: three peers train one model over an emulated ocean, one is killed and comes back.

Everything in it is what a user has: the `ciuic-peer` command, the training script of the examples, the daemon's views.
"""

from ciuic_p2p.lab.demo.show import run_demo

__all__ = ["run_demo"]
