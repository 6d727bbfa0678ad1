"""A wide-area network on one machine, and the demonstration that runs in it. Knows no protocol of the peers."""
