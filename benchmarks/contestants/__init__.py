"""Those who average the same tensors, each as one process a peer that waits for its cue, and how each is driven."""
