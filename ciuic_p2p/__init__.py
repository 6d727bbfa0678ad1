"""Train one PyTorch model over the ordinary Internet, peer to peer."""
